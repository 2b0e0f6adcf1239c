//! Messages and calls as any client makes them: prost for the messages, plain h2 for the calls.

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use prost::Message;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

#[derive(Clone, PartialEq, prost::Message)]
pub struct InferParameter {
    #[prost(oneof = "Choice", tags = "1, 2, 3")]
    pub choice: Option<Choice>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Choice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int64(i64),
    #[prost(string, tag = "3")]
    Text(String),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Tensor {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InferRequest {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(map = "string, message", tag = "4")]
    pub parameters: std::collections::HashMap<String, InferParameter>,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<Tensor>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub raw_input_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InferResponse {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(map = "string, message", tag = "4")]
    pub parameters: std::collections::HashMap<String, InferParameter>,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<Tensor>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub raw_output_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamResponse {
    #[prost(string, tag = "1")]
    pub error_message: String,
    #[prost(message, optional, tag = "2")]
    pub infer_response: Option<InferResponse>,
}

/// A request of `values` as rows of one FP32 column.
pub fn request(model: &str, values: &[f32]) -> InferRequest {
    let raw: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    InferRequest {
        model_name: model.into(),
        inputs: vec![Tensor {
            name: "x".into(),
            datatype: "FP32".into(),
            shape: vec![values.len() as i64, 1],
        }],
        raw_input_contents: vec![raw.into()],
        ..InferRequest::default()
    }
}

/// The values of an answer.
pub fn values(response: &InferResponse) -> Vec<f32> {
    let raw = &response.raw_output_contents[0];
    raw.chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

/// One gRPC frame.
pub fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.extend_from_slice(message);
    frame.freeze()
}

/// What came back of a call.
#[derive(Debug, Default)]
pub struct Reply {
    pub code: u32,
    pub reason: String,
    pub message: String,
    pub frames: Vec<Bytes>,
}

impl Reply {
    /// The answer of a unary call that must have gone well.
    pub fn answer(&self) -> InferResponse {
        assert_eq!(self.code, 0, "{} {}", self.reason, self.message);
        InferResponse::decode(&self.frames[0][..]).unwrap()
    }

    /// The answers of a stream.
    pub fn answers(&self) -> Vec<StreamResponse> {
        self.frames
            .iter()
            .map(|frame| StreamResponse::decode(&frame[..]).unwrap())
            .collect()
    }

    fn status(&mut self, headers: &HeaderMap) {
        let text = |name: &str| {
            headers
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
                .unwrap_or_default()
        };
        self.code = text("grpc-status").parse().unwrap();
        self.reason = text("headrace-reason");
        self.message = text("grpc-message");
    }
}

/// One HTTP/2 connection to a server.
#[derive(Clone)]
pub struct Client(SendRequest<Bytes>);

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(8 << 20)
            .initial_connection_window_size(32 << 20);
        let (send, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Self(send)
    }

    /// Begins a call and sends `body` whole; `last` ends the request.
    pub async fn begin(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
        last: bool,
    ) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        let mut request =
            Request::post(format!("http://test{path}")).header("content-type", "application/grpc");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut send = self.0.clone().ready().await.unwrap();
        let (response, mut stream) = send.send_request(request.body(()).unwrap(), false).unwrap();
        if !body.is_empty() || last {
            stream.send_data(body, last).unwrap();
        }
        (response, stream)
    }

    /// A whole call.
    pub async fn call(&self, path: &str, headers: &[(&str, &str)], body: Bytes) -> Reply {
        let (response, _stream) = self.begin(path, headers, body, true).await;
        tokio::time::timeout(Duration::from_secs(20), read(response))
            .await
            .expect("an answer within 20 s")
    }

    pub async fn infer_with(&self, request: &InferRequest, headers: &[(&str, &str)]) -> Reply {
        self.call(INFER, headers, frame(&request.encode_to_vec()))
            .await
    }

    pub async fn infer(&self, request: &InferRequest) -> Reply {
        self.infer_with(request, &[]).await
    }
}

pub const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
pub const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Reads an answer to its end.
pub async fn read(response: h2::client::ResponseFuture) -> Reply {
    let mut reply = Reply::default();
    let response = response.await.expect("a response head");
    if response.headers().contains_key("grpc-status") {
        reply.status(response.headers());
        return reply;
    }
    let mut body = response.into_body();
    let mut held = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.expect("data");
        body.flow_control().release_capacity(data.len()).unwrap();
        held.extend_from_slice(&data);
        while held.len() >= 5 {
            let length = u32::from_be_bytes(held[1..5].try_into().unwrap()) as usize;
            if held.len() < 5 + length {
                break;
            }
            reply
                .frames
                .push(held.split_to(5 + length).freeze().slice(5..));
        }
    }
    let trailers = body.trailers().await.expect("trailers").expect("trailers");
    reply.status(&trailers);
    reply
}
