//! `headrace-load [--FIELD VALUE]… [--payload FILE]… [< config.json]`: one load test; prints its report as JSON.
//!
//! Every field of the configuration is a flag with dashes: `--url 127.0.0.1:8001 --connections 16 --duration-ms 3000`. `--config FILE`
//! (or `-` for standard input) gives a whole configuration, which the flags then change. Exit code 2: nothing could be measured.

use std::{io::Read, process::ExitCode, sync::atomic::AtomicBool};

use headrace_load::{Config, LoadError, run};
use serde_json::{Map, Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let report = configuration(std::env::args().skip(1))
        .map_err(LoadError::Config)
        .and_then(|config| run(&config, &AtomicBool::new(false)));
    match report {
        Ok(report) => {
            let report = serde_json::to_string_pretty(&report).expect("a report is plain data");
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("headrace-load: {error}");
            ExitCode::from(2)
        }
    }
}

fn configuration(mut arguments: impl Iterator<Item = String>) -> Result<Config, String> {
    let mut fields = Map::new();
    while let Some(flag) = arguments.next() {
        let name = flag
            .strip_prefix("--")
            .ok_or_else(|| format!("{flag}: flags begin with --"))?;
        let value = arguments
            .next()
            .ok_or_else(|| format!("{flag} needs a value"))?;
        match name {
            "config" => fields.extend(read_config(&value)?),
            "payload" => push(&mut fields, "payloads", json!({ "path": value })),
            "expect" => push(&mut fields, "expect", json!({ "path": value })),
            _ => {
                let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
                fields.insert(name.replace('-', "_"), value);
            }
        }
    }
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| format!("the configuration: {error}"))
}

fn read_config(path: &str) -> Result<Map<String, Value>, String> {
    let text = if path == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.map_err(|error| format!("{path}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))
}

fn push(fields: &mut Map<String, Value>, name: &str, item: Value) {
    if let Value::Array(items) = fields.entry(name).or_insert_with(|| json!([])) {
        items.push(item);
    }
}
