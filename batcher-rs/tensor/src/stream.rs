//! Replies of `ModelStreamInfer` in Triton's form: `ModelStreamInferResponse { error_message = 1, infer_response = 2 }`.

use bytes::Bytes;

use crate::admit::Admitted;
use crate::encode::{OutputView, Reply, ReplyTooLarge, put_frame_head};
use crate::signature::Signature;
use crate::wire::{field_len, put_head, put_text, text_len};

/// `parameters { "triton_final_response": bool_param }` as a field of `ModelInferResponse`.
const FINAL: &[u8] = b"\x22\x1b\x0a\x15triton_final_response\x12\x02\x08\x01";
const NOT_FINAL: &[u8] = b"\x22\x1b\x0a\x15triton_final_response\x12\x02\x08\x00";

/// Like [`encode_reply`](crate::encode_reply), for a stream. `last` says whether this is the request's last answer, where the caller
/// wants that told in `triton_final_response`.
///
/// # Errors
/// The reply would not fit in a frame.
#[allow(clippy::too_many_arguments)]
pub fn encode_stream_reply(
    out: &mut Vec<u8>,
    signature: &Signature,
    message: &Bytes,
    admitted: &Admitted,
    first_row: u32,
    wanted: &[usize],
    outputs: &[OutputView<'_>],
    last: Option<bool>,
) -> Result<(), ReplyTooLarge> {
    let mut reply = Reply::new(signature, message, admitted, first_row, wanted, outputs);
    reply.parameters = match last {
        None => &[],
        Some(true) => FINAL,
        Some(false) => NOT_FINAL,
    };
    put(out, &reply)
}

/// Appends the empty answer that ends a request's answers (`triton_enable_empty_final_response`).
///
/// # Errors
/// The reply would not fit in a frame.
pub fn encode_stream_end(
    out: &mut Vec<u8>,
    signature: &Signature,
    message: &Bytes,
    admitted: &Admitted,
) -> Result<(), ReplyTooLarge> {
    let mut reply = Reply::empty(signature, message, admitted);
    reply.parameters = FINAL;
    put(out, &reply)
}

fn put(out: &mut Vec<u8>, reply: &Reply<'_>) -> Result<(), ReplyTooLarge> {
    let len = reply.len();
    put_frame_head(out, field_len(len))?;
    put_head(out, 2, len);
    reply.put(out);
    Ok(())
}

/// Appends an error told within the stream, with the `id` of the request that it answers.
///
/// # Errors
/// The texts would not fit in a frame.
pub fn encode_stream_error(out: &mut Vec<u8>, id: &[u8], error: &str) -> Result<(), ReplyTooLarge> {
    let response = text_len(id);
    put_frame_head(out, text_len(error.as_bytes()) + field_len(response))?;
    put_text(out, 1, error.as_bytes());
    put_head(out, 2, response);
    put_text(out, 3, id);
    Ok(())
}
