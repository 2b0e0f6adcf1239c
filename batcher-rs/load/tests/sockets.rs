//! Other ways to a server: a unix socket, HTTP/1.1.

use std::{
    io::{Read, Write},
    sync::atomic::AtomicBool,
    thread,
};

use headrace_load::{Config, Payload, Protocol, run};

fn config(url: String) -> Config {
    let mut config = Config::new(url, vec![Payload::Base64("aGVsbG8=".to_owned())]);
    (config.warmup_ms, config.requests) = (0, Some(100));
    config
}

#[test]
fn a_unix_socket_is_a_target_like_any_other() {
    let folder = std::env::temp_dir().join(format!("headrace-load-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("h2.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            let (socket, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(socket).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(request.uri().authority().unwrap().as_str(), "localhost");
                let head = http::Response::builder()
                    .header("grpc-status", "0")
                    .body(())
                    .unwrap();
                respond.send_response(head, true).unwrap();
            }
        });
    });
    let report = run(
        &config(format!("unix:{}", path.display())),
        &AtomicBool::new(false),
    );
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(report.unwrap().ok, 100);
}

#[test]
fn http1_counts_answers_and_failures_by_their_status() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        let mut read = Vec::new();
        for turn in 0_u32.. {
            while !read.ends_with(b"\r\n\r\nhello") {
                let mut chunk = [0; 1024];
                let length = socket.read(&mut chunk).unwrap();
                if length == 0 {
                    return;
                }
                read.extend_from_slice(&chunk[..length]);
            }
            read.clear();
            // Head and body in two pieces, as servers may send them.
            let status = if turn % 4 == 3 { "503 Busy" } else { "200 OK" };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: 3\r\n\r\nx");
            socket.write_all(head.as_bytes()).unwrap();
            socket.write_all(b"yz").unwrap();
        }
    });
    let mut config = config(address.to_string());
    (config.protocol, config.concurrency, config.connections) = (Protocol::Http1, 1, 1);
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(
        (report.requests, report.ok, report.bytes_in),
        (100, 75, 300),
        "{report:?}"
    );
    assert_eq!(report.reasons["CLIENT_HTTP_503"], 25);
}
