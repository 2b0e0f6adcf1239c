//! Where the server is, and a connection to it.

use std::{future::poll_fn, io, path::PathBuf, pin::pin, time::Duration};

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use headrace_front::io::{CoalescingIo, Flusher, coalesce};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::LoadError;

/// A socket of either kind.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
pub(crate) type Socket = Box<dyn Io>;

/// An HTTP/2 connection and what belongs to it; whoever polls `connection` calls `flusher` afterwards.
pub(crate) struct Link {
    pub(crate) connection: Connection<CoalescingIo<Socket>, Bytes>,
    pub(crate) flusher: Flusher<Socket>,
    pub(crate) send: SendRequest<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `host:port`
    Tcp(String),
    Unix(PathBuf),
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, LoadError> {
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Self::Unix(path.strip_prefix("//").unwrap_or(path).into()));
        }
        if url.starts_with("https://") {
            return Err(LoadError::Config(format!(
                "{url}: the load generator speaks plain HTTP/2, without TLS"
            )));
        }
        let address = ["http://", "grpc://"]
            .iter()
            .find_map(|scheme| url.strip_prefix(scheme))
            .unwrap_or(url);
        let address = address.trim_end_matches('/');
        match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(address.to_owned()))
            }
            _ => Err(LoadError::Config(format!(
                "{url}: expected host:port or unix:/path/to/socket"
            ))),
        }
    }

    /// The `:authority` or `Host` of requests to it.
    pub(crate) fn authority(&self) -> &str {
        match self {
            Self::Tcp(address) => address,
            Self::Unix(_) => "localhost",
        }
    }

    pub(crate) async fn open(&self, timeout: Duration) -> io::Result<Socket> {
        let opening = async {
            Ok(match self {
                Self::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Box::new(stream) as Socket
                }
                Self::Unix(path) => Box::new(tokio::net::UnixStream::connect(path).await?),
            })
        };
        match tokio::time::timeout(timeout, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no connection within {} ms", timeout.as_millis()),
            )),
        }
    }

    /// Opens an HTTP/2 connection with windows that never hold back a reply.
    pub(crate) async fn link(&self, timeout: Duration) -> io::Result<Link> {
        let (io, flusher) = coalesce(self.open(timeout).await?);
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(1 << 20)
            .initial_connection_window_size(16 << 20)
            .initial_max_send_streams(4096)
            .max_concurrent_reset_streams(4096)
            // Answers that come after a cancel are no fault of the server: they must not end the connection.
            .max_local_error_reset_streams(None)
            .enable_push(false);
        let mut handshake = pin!(builder.handshake(io));
        let (send, connection) = poll_fn(|cx| {
            let done = handshake.as_mut().poll(cx);
            // An error of the socket comes back with the connection's next poll.
            let _ = flusher.poll_flush(cx);
            done
        })
        .await
        .map_err(io::Error::other)?;
        Ok(Link {
            connection,
            flusher,
            send,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_with_and_without_a_scheme() {
        for url in [
            "127.0.0.1:8001",
            "http://127.0.0.1:8001",
            "grpc://127.0.0.1:8001/",
        ] {
            assert_eq!(
                Target::parse(url).unwrap(),
                Target::Tcp("127.0.0.1:8001".to_owned()),
                "{url}"
            );
        }
        for url in ["unix:/run/w.sock", "unix:///run/w.sock"] {
            assert_eq!(
                Target::parse(url).unwrap(),
                Target::Unix("/run/w.sock".into()),
                "{url}"
            );
        }
    }

    #[test]
    fn an_address_that_cannot_be_meant_is_refused_by_name() {
        for url in ["localhost", ":8001", "host:port", "https://host:1", ""] {
            let error = Target::parse(url).unwrap_err().to_string();
            assert!(error.starts_with(url), "{error}");
        }
    }
}
