//! The loop of one instance: takes a batch, joins it, runs it, splits the answers. It survives whatever the model does.

use super::counters::Phases;
use super::entry::{Answer, Pending, Post};
use super::model::{ModelQueue, QueueBatch, QueueEntry};
use super::runner::{BatchInput, RunError, Runner};
use crate::status::{Reason, Status};
use bytes::Bytes;
use headrace_queue::Live;
use headrace_tensor::{
    Admitted, OutputData, OutputView, ReplyTooLarge, Signature, Slab, check_outputs, encode_reply,
    encode_stream_reply, join, wanted,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Serves batches of `model` until its queue is closed and empty.
pub(crate) fn serve(model: &ModelQueue, index: usize, runner: &mut dyn Runner, max_reply: usize) {
    struct Ended<'a>(&'a ModelQueue, usize);
    impl Drop for Ended<'_> {
        fn drop(&mut self) {
            self.0.instances[self.1].dead();
            self.0.instance_ended();
        }
    }
    let _ended = Ended(model, index);
    let mut instance = Executing {
        model,
        runner,
        slab: Slab::default(),
        max_reply,
    };
    let mut finished = None;
    while let Some(QueueBatch {
        mut entries,
        why,
        ticket,
        ..
    }) = model.next(finished.take())
    {
        let health = &model.instances[index];
        health.begin();
        {
            let now = Instant::now();
            let mut counters = model.counters.lock();
            counters.batch_left(why);
            for entry in &entries {
                counters.waited(now.saturating_duration_since(entry.arrived));
            }
        }
        let guarded = catch_unwind(AssertUnwindSafe(|| instance.batch(&mut entries)));
        let ok = guarded.unwrap_or_else(|_| {
            // A fault of ours: this batch fails, the loop lives (V13).
            instance.slab = Slab::default();
            instance
                .runner
                .report("the batch loop panicked; the batch failed and the loop goes on");
            false
        });
        // Whoever has no answer by now gets one here.
        let mut post = Post::default();
        for entry in entries.drain(..) {
            instance.fail(
                entry,
                Status::new(
                    Reason::Internal,
                    "an internal error; the server's log has the detail",
                ),
                &mut post,
            );
        }
        drop(post);
        health.end();
        finished = Some((ticket, ok));
    }
}

/// Bytes of a gRPC frame's prefix.
const PREFIX: usize = 5;

/// An encoded answer, or why there can be none.
type Frame = Result<Bytes, Status>;

/// How an execution went, as far as the entries of the batch are concerned.
enum Outcome {
    /// Each entry has this one answer.
    Answered(Vec<Frame>),
    /// Answers were given one by one as they came; these entries were told why they get no more.
    Streamed(Vec<Option<Status>>),
    /// Nobody has an answer.
    Failed(Fault),
}

enum Fault {
    Model(RunError),
    Outputs(String),
}

struct Executing<'a> {
    model: &'a ModelQueue,
    runner: &'a mut dyn Runner,
    slab: Slab,
    max_reply: usize,
}

impl Executing<'_> {
    /// Runs a batch and answers its entries. Entries that are left in the vector got no answer.
    fn batch(&mut self, entries: &mut Vec<QueueEntry>) -> bool {
        match self.execute(entries) {
            Outcome::Failed(_) if entries.len() > 1 => {
                // One row may be to blame: each request runs once more, alone, so that only the guilty one fails (V14).
                for entry in std::mem::take(entries) {
                    let mut alone = vec![entry];
                    if self.still_wanted(&mut alone) {
                        let outcome = self.execute(&mut alone);
                        self.settle(outcome, &mut alone);
                    }
                }
                false
            }
            outcome => {
                let ok = matches!(outcome, Outcome::Answered(_) | Outcome::Streamed(_));
                self.settle(outcome, entries);
                ok
            }
        }
    }

    /// Between two runs a caller may have gone and a deadline passed.
    fn still_wanted(&self, alone: &mut Vec<QueueEntry>) -> bool {
        let Some(entry) = alone.first() else {
            return false;
        };
        if entry.payload.is_cancelled() {
            self.model.counters.lock().cancelled += 1;
            alone.clear();
        } else if entry
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now())
        {
            let mut post = Post::default();
            let status = Status::new(
                Reason::DeadlineExceeded,
                "the deadline passed while the request ran with others that failed",
            );
            self.fail(alone.remove(0), status, &mut post);
        }
        !alone.is_empty()
    }

    fn execute(&mut self, entries: &mut [QueueEntry]) -> Outcome {
        let signature = self.model.signature();
        let begun = Instant::now();
        let rows: u32 = entries.iter().map(|entry| entry.rows).sum();
        let (input, wanted) = {
            let pairs: Vec<(&Bytes, &Admitted)> = entries
                .iter()
                .map(|entry| (&entry.payload.message, &entry.payload.admitted))
                .collect();
            let wanted = wanted(&pairs, signature);
            let joined = join(signature, &pairs, &mut self.slab);
            let (message, admitted) = pairs[0];
            let parameters = admitted.parameters(message, signature);
            let parameters = parameters
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect();
            (
                BatchInput {
                    joined,
                    wanted: &[],
                    parameters,
                },
                wanted,
            )
        };
        let joined_at = Instant::now();
        let mut answered = None;
        let mut streamed: Option<Vec<Option<Status>>> = None;
        let mut fault = None;
        let mut split = Duration::ZERO;
        let limit = self.max_reply;
        let mut emit = |outputs: &[OutputView<'_>], last: bool| {
            let start = Instant::now();
            let more = match check_outputs(signature, rows, &wanted, outputs) {
                Err(bad) => {
                    fault = Some(bad.to_string());
                    false
                }
                Ok(()) => {
                    let frames = encode(signature, entries, &wanted, outputs, last, limit);
                    if last {
                        answered = Some(frames);
                        true
                    } else {
                        let told = streamed.get_or_insert_with(|| vec![None; entries.len()]);
                        stream(entries, frames, told)
                    }
                }
            };
            split += start.elapsed();
            more
        };
        let ran = self.runner.run(
            BatchInput {
                wanted: &wanted,
                ..input
            },
            &mut emit,
        );
        let phases = Phases {
            join: joined_at - begun,
            execute: joined_at.elapsed().saturating_sub(split),
            split,
        };
        self.model
            .counters
            .lock()
            .executed(rows, entries.len() as u64, phases);
        match (ran, fault, answered, streamed) {
            (_, Some(fault), ..) => Outcome::Failed(Fault::Outputs(fault)),
            (Ok(()), None, Some(frames), _) => Outcome::Answered(frames),
            (Ok(()), None, None, streamed) => {
                Outcome::Streamed(streamed.unwrap_or_else(|| vec![None; entries.len()]))
            }
            (Err(error), None, _, None) => Outcome::Failed(Fault::Model(error)),
            (Err(error), None, _, Some(told)) => {
                let status = self.status_of(&Fault::Model(error));
                Outcome::Streamed(
                    told.into_iter()
                        .map(|told| Some(told.unwrap_or_else(|| status.clone())))
                        .collect(),
                )
            }
        }
    }

    fn settle(&mut self, outcome: Outcome, entries: &mut Vec<QueueEntry>) {
        let mut post = Post::default();
        match outcome {
            Outcome::Answered(frames) => {
                let now = Instant::now();
                let mut counters = self.model.counters.lock();
                counters.touch();
                for (entry, frame) in entries.drain(..).zip(frames) {
                    let took = now.saturating_duration_since(entry.arrived);
                    match frame {
                        Ok(frame) => {
                            counters.succeeded(entry.rows, took);
                            entry.payload.answer(frame, &mut post);
                        }
                        Err(status) => {
                            counters.failed(took);
                            entry.payload.fail(status, &mut post);
                        }
                    }
                }
            }
            Outcome::Streamed(told) => {
                let now = Instant::now();
                for (entry, told) in entries.drain(..).zip(told) {
                    match told {
                        Some(status) => self.fail(entry, status, &mut post),
                        None => {
                            let mut counters = self.model.counters.lock();
                            counters.touch();
                            counters.succeeded(
                                entry.rows,
                                now.saturating_duration_since(entry.arrived),
                            );
                            drop(counters);
                            entry.payload.complete(self.model.signature(), &mut post);
                        }
                    }
                }
            }
            Outcome::Failed(fault) => {
                let status = self.status_of(&fault);
                for entry in entries.drain(..) {
                    self.fail(entry, status.clone(), &mut post);
                }
            }
        }
    }

    fn fail(&self, entry: QueueEntry, status: Status, post: &mut Post) {
        self.model.counters.lock().failed(entry.arrived.elapsed());
        entry.payload.fail(status, post);
    }

    fn status_of(&mut self, fault: &Fault) -> Status {
        let model = &self.model.signature().model;
        match fault {
            Fault::Model(RunError::InvalidInput(text)) => {
                Status::new(Reason::InvalidTensor, text.clone())
            }
            Fault::Model(RunError::Failed) => Status::new(
                Reason::InferenceFailed,
                format!("model '{model}' failed on this request; the server's log has the detail"),
            ),
            Fault::Outputs(text) => {
                self.runner.report(&format!("model '{model}': {text}"));
                Status::new(
                    Reason::InferenceFailed,
                    format!("model '{model}' gave outputs that do not fit the request: {text}"),
                )
            }
        }
    }
}

fn reply_too_large(bytes: u64, limit: usize) -> Status {
    let text = format!(
        "the answer has {bytes} bytes, this server sends {limit} at most (setting max_message_bytes)"
    );
    Status::new(Reason::MessageTooLarge, text)
}

/// One frame for each entry, cut from one buffer; the status of an answer that no frame can hold.
fn encode(
    signature: &Signature,
    entries: &[QueueEntry],
    wanted: &[usize],
    outputs: &[OutputView<'_>],
    last: bool,
    limit: usize,
) -> Vec<Frame> {
    let payload: usize = outputs.iter().map(output_len).sum();
    let mut buffer = Vec::with_capacity(payload + entries.len() * 192);
    let mut ends = Vec::with_capacity(entries.len());
    let mut first_row = 0;
    for entry in entries {
        let Pending {
            message,
            admitted,
            answer,
            ..
        } = &entry.payload;
        let encoded = match answer {
            Answer::Unary { .. } => encode_reply(
                &mut buffer,
                signature,
                message,
                admitted,
                first_row,
                wanted,
                outputs,
            ),
            Answer::Stream { wants_final, .. } => {
                let last = wants_final.then_some(last);
                encode_stream_reply(
                    &mut buffer,
                    signature,
                    message,
                    admitted,
                    first_row,
                    wanted,
                    outputs,
                    last,
                )
            }
        };
        ends.push(encoded.map(|()| buffer.len()));
        first_row += entry.rows;
    }
    let mut all = Bytes::from(buffer);
    let mut start = 0;
    let cut = |end: Result<usize, ReplyTooLarge>| match end {
        Ok(end) => {
            let frame = all.split_to(end - start);
            start = end;
            let bytes = frame.len() - PREFIX;
            if bytes > limit {
                Err(reply_too_large(bytes as u64, limit))
            } else {
                Ok(frame)
            }
        }
        Err(ReplyTooLarge { bytes }) => Err(reply_too_large(bytes, limit)),
    };
    ends.into_iter().map(cut).collect()
}

fn output_len(output: &OutputView<'_>) -> usize {
    match output.data {
        OutputData::Raw(bytes) => bytes.len(),
        OutputData::Strings(elements) => elements.iter().map(|element| element.len() + 4).sum(),
    }
}

/// Hands one answer to each entry that still takes answers; whether any does.
fn stream(entries: &mut [QueueEntry], frames: Vec<Frame>, told: &mut [Option<Status>]) -> bool {
    let mut more = false;
    for ((entry, frame), told) in entries.iter_mut().zip(frames).zip(told) {
        if told.is_some() {
            continue;
        }
        let given = match frame {
            _ if entry.payload.is_cancelled() => {
                Err(Status::new(Reason::Cancelled, "the caller is gone"))
            }
            Ok(frame) => entry.payload.partial(frame),
            Err(status) => Err(status),
        };
        match given {
            Ok(()) => more = true,
            Err(status) => *told = Some(status),
        }
    }
    more
}
