//! Compressed messages: gzip, bounded by the size limit, so that a small bomb cannot become a large one.

use crate::status::{Reason, Status};
use bytes::Bytes;
use flate2::bufread::GzDecoder;
use http::HeaderMap;
use std::io::Read;

/// How a call's messages may be compressed (`grpc-encoding`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Not at all.
    Identity,
    /// gzip, message by message.
    Gzip,
    /// Something this server does not speak.
    Unknown,
}

impl Encoding {
    /// What the call's headers announce.
    pub fn of(headers: &HeaderMap) -> Self {
        match headers
            .get("grpc-encoding")
            .map(http::HeaderValue::as_bytes)
        {
            None | Some(b"identity") => Self::Identity,
            Some(b"gzip") => Self::Gzip,
            Some(_) => Self::Unknown,
        }
    }
}

/// How much is inflated before others on the same thread get their turn.
const STRETCH: u64 = 256 << 10;

/// Inflates one message, giving way to other work now and then.
///
/// # Errors
/// `MESSAGE_TOO_LARGE` as soon as more than `limit` bytes have come out, `INVALID_REQUEST` when it is no gzip.
pub async fn inflate(message: Bytes, limit: usize) -> Result<Bytes, Status> {
    let mut inflated = Vec::with_capacity((message.len() * 3).min(limit));
    let mut decoder = GzDecoder::new(&message[..]);
    loop {
        let came = (&mut decoder)
            .take(STRETCH)
            .read_to_end(&mut inflated)
            .map_err(|error| {
                Status::new(
                    Reason::InvalidRequest,
                    format!("the message is marked as gzip and does not inflate: {error}"),
                )
            })?;
        if inflated.len() > limit {
            return Err(too_large(inflated.len(), limit));
        }
        if came == 0 {
            return Ok(Bytes::from(inflated));
        }
        tokio::task::yield_now().await;
    }
}

/// The refusal of a message over the size limit.
pub fn too_large(bytes: usize, limit: usize) -> Status {
    Status::new(
        Reason::MessageTooLarge,
        format!(
            "the message has {bytes} bytes or more, this server takes {limit} (setting max_message_bytes)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap().into()
    }

    #[tokio::test]
    async fn a_bomb_is_refused_at_the_limit_not_after_it() {
        let bomb = gzip(&vec![0; 32 << 20]);
        assert!(bomb.len() < 64 << 10);
        let status = inflate(bomb, 1 << 20).await.unwrap_err();
        assert_eq!(status.reason, "MESSAGE_TOO_LARGE");
        assert!(status.message.contains("max_message_bytes"));
    }

    #[tokio::test]
    async fn what_was_deflated_comes_back() {
        let message: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(inflate(gzip(&message), 64 << 20).await.unwrap(), message);
    }

    #[tokio::test]
    async fn half_a_stream_and_rubbish_are_invalid_requests() {
        let whole = gzip(b"hello hello hello");
        for bad in [
            whole.slice(..whole.len() / 2),
            Bytes::from_static(b"no gzip at all"),
        ] {
            assert_eq!(
                inflate(bad, 1 << 20).await.unwrap_err().reason,
                "INVALID_REQUEST"
            );
        }
    }
}
