//! Any bytes as what a client sends over HTTP/2: frames in any order, calls with any headers and bodies. Nothing may panic or hang.
#![no_main]

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use headrace_front::config::FrontConfig;
use headrace_front::worker::{BatchInput, Catalog, Emit, ModelSpec, RunError, Runner, WorkerFront};
use headrace_tensor::{JoinedData, OutputData, OutputView};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Gives the one input back as the one output.
struct Echo;

impl Runner for Echo {
    fn run(&mut self, batch: BatchInput<'_>, emit: &mut Emit<'_>) -> Result<(), RunError> {
        let input = &batch.joined.inputs[0];
        let bytes: &[u8] = match &input.data {
            JoinedData::View(bytes) => bytes,
            JoinedData::Slab(slab) => slab,
            JoinedData::Strings(_) => return Err(RunError::Failed),
        };
        let output = OutputView {
            shape: &input.shape,
            data: OutputData::Raw(bytes),
        };
        emit(&[output], true);
        Ok(())
    }

    fn report(&mut self, _text: &str) {}
}

static FRONT: LazyLock<WorkerFront> = LazyLock::new(|| {
    let config = FrontConfig {
        max_message_bytes: 1 << 16,
        max_timeout_ms: 50,
        body_timeout_ms: 50,
        ..FrontConfig::default()
    };
    let front = WorkerFront::bind(config).expect("a free port");
    let spec: ModelSpec = serde_json::from_str(
        r#"{"name":"m","version":"1","max_rows":8,"batching":true,
            "inputs":[{"name":"x","datatype":"FP32","dims":[-1,-1],"batch_axis":0}],
            "outputs":[{"name":"y","datatype":"FP32","dims":[-1,-1],"batch_axis":0}]}"#,
    )
    .expect("a spec");
    front
        .install(&spec, vec![Box::new(Echo)], Duration::from_secs(1))
        .expect("a thread");
    let catalog: Catalog = serde_json::from_str(
        r#"{"models":{"m":{"default":"1","versions":{"1":{"state":"READY"}}}}}"#,
    )
    .expect("a catalog");
    front.set_catalog(catalog);
    front
});

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A header as HPACK says it without its tables: literal, not indexed.
fn header(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0, name.len() as u8];
    field.extend_from_slice(name.as_bytes());
    field.push(value.len() as u8);
    field.extend_from_slice(value.as_bytes());
    field
}

/// The client's bytes: a sound beginning, then rubbish; or sound calls with rubbish in their bodies.
fn client(data: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    let Some((&mode, data)) = data.split_first() else {
        return bytes;
    };
    if mode & 1 == 0 {
        bytes.extend_from_slice(data);
        return bytes;
    }
    let method = if mode & 2 == 0 {
        "ModelInfer"
    } else {
        "ModelStreamInfer"
    };
    let mut headers = vec![0x83, 0x86];
    headers.extend(header(
        ":path",
        &format!("/inference.GRPCInferenceService/{method}"),
    ));
    headers.extend(header(":authority", "fuzz"));
    headers.extend(header("content-type", "application/grpc"));
    if mode & 4 != 0 {
        headers.extend(header("grpc-encoding", "gzip"));
    }
    for (index, body) in data.chunks(1024).take(8).enumerate() {
        let stream = index as u32 * 2 + 1;
        bytes.extend(frame(1, 4, stream, &headers));
        bytes.extend(frame(0, u8::from(mode & 8 == 0), stream, body));
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let bytes = client(data);
    runtime.block_on(async move {
        let (mut near, far) = tokio::io::duplex(1 << 16);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let serving = FRONT.serve_connection(far, peer);
        let calling = async move {
            // The server may close before it has read everything.
            let _ = near.write_all(&bytes).await;
            let _ = near.shutdown().await;
            let mut answer = Vec::new();
            let _ = near.read_to_end(&mut answer).await;
        };
        let both = async { tokio::join!(serving, calling) };
        tokio::time::timeout(Duration::from_secs(10), both)
            .await
            .expect("the connection ends");
    });
});
