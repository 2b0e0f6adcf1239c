//! A closed loop over HTTP/1.1: one connection, one request at a time. Only for peers that speak nothing else.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    answer::Failure,
    dial::Socket,
    grpc::Job,
    record::{Finished, Record},
};

/// A head longer than this is no answer of an inference server.
const LONGEST_HEAD: usize = 16 * 1024;

/// The whole request as it goes over the wire, for each payload.
pub(crate) fn request(
    path: &str,
    authority: &str,
    content_type: &str,
    headers: &str,
    body: &[u8],
) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// Asks until `end` or until the budget is spent. An answer that has not come by `end` + `drain` is given up.
pub(crate) async fn drive(
    job: Arc<Job>,
    record: Arc<Mutex<Record>>,
    mut socket: Socket,
    count_from: Instant,
    end: Instant,
) {
    let mut buffer = BytesMut::with_capacity(16 * 1024);
    let mut serial = 0;
    loop {
        let meant = Instant::now();
        if meant >= end
            || job.stop.load(Ordering::Relaxed)
            || (meant >= count_from && !job.take_budget())
        {
            return;
        }
        let frame = &job.frames[serial % job.frames.len()];
        serial += 1;
        let exchange = async {
            socket.write_all(frame).await?;
            read_reply(&mut socket, &mut buffer).await
        };
        let answered = tokio::time::timeout_at((end + job.drain).into(), exchange).await;
        let at = Instant::now();
        let (failure, bytes_in) = match answered {
            Ok(Ok((200, bytes))) => (None, bytes),
            Ok(Ok((status, bytes))) => (Some(Failure::from_http1(status)), bytes),
            Ok(Err(error)) => (Some(Failure::connection_lost(&error.to_string())), 0),
            Err(_) => (Some(Failure::unanswered()), 0),
        };
        let lost = failure
            .as_ref()
            .is_some_and(|failure| failure.reason == "CLIENT_CONNECTION_LOST");
        let bytes_out = frame.len() as u64;
        record.lock().finished(&Finished {
            meant,
            at,
            failure: failure.as_ref(),
            bytes_in,
            bytes_out,
            mismatch: false,
        });
        if lost {
            buffer.clear();
            match job.target.open(job.connect_timeout).await {
                Ok(fresh) => socket = fresh,
                Err(_) => return,
            }
            record.lock().reconnects += 1;
        }
    }
}

/// Status and length of the body of one reply; what follows it stays in `buffer`.
async fn read_reply(socket: &mut Socket, buffer: &mut BytesMut) -> io::Result<(u16, u64)> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if buffer.len() > LONGEST_HEAD {
            return Err(io::Error::other("the head of the reply has no end"));
        }
        more(socket, buffer).await?;
    };
    let (status, length) = parse_head(&buffer[..head_end])
        .ok_or_else(|| io::Error::other("the reply is not HTTP/1.1 with a content-length"))?;
    buffer.advance(head_end);
    while buffer.len() < length {
        more(socket, buffer).await?;
    }
    buffer.advance(length);
    Ok((status, length as u64))
}

async fn more(socket: &mut Socket, buffer: &mut BytesMut) -> io::Result<()> {
    if socket.read_buf(buffer).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

fn parse_head(head: &[u8]) -> Option<(u16, usize)> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let status = lines
        .next()?
        .strip_prefix("HTTP/1.1 ")?
        .get(..3)?
        .parse()
        .ok()?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?
        .1;
    Some((status, length.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_gives_status_and_length_whatever_the_case_of_names() {
        let head = b"HTTP/1.1 503 Busy\r\nServer: x\r\nContent-Length: 12\r\n\r\n";
        assert_eq!(parse_head(head), Some((503, 12)));
    }

    #[test]
    fn a_reply_without_a_length_is_not_understood() {
        assert_eq!(
            parse_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
            None
        );
        assert_eq!(parse_head(b"PRI * HTTP/2.0\r\n\r\n"), None);
    }
}
