//! `headrace-echo [--listen 127.0.0.1:0] [--reply-bytes 92 | --reply-message FILE]`: the do-nothing server, for `bench/`.
//!
//! Prints the address that it listens on and serves until it is killed. `--reply-bytes` counts the whole gRPC frame.

use std::process::ExitCode;

use headrace_load::echo;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("headrace-echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let mut listen = "127.0.0.1:0".to_owned();
    let mut frame = echo::frame(92);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--listen" => listen = value,
            "--reply-bytes" => frame = echo::frame(value.parse()?),
            "--reply-message" => {
                let message = std::fs::read(&value).map_err(|error| format!("{value}: {error}"))?;
                let mut framed = echo::frame(5 + message.len()).to_vec();
                framed[5..].copy_from_slice(&message);
                frame = framed.into();
            }
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(&listen)
            .await
            .map_err(|error| format!("{listen}: {error}"))?;
        println!("{}", listener.local_addr()?);
        Ok(echo::serve(listener, frame).await?)
    })
}
