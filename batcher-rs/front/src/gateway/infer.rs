//! `ModelInfer`: from the caller's first bytes to the last trailer.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use headrace_tensor::{Peek, peek};
use http::{HeaderMap, Request, Response};
use tokio::time::Sleep;

use super::arrival::{Arrival, Arrived, PREFIX};
use super::ask::{Answer, Ask, ask, metadata_for, open_somewhere};
use super::replica::Outstanding;
use super::routes::Way;
use super::stream::framed;
use super::{GatewayService, INFER};
use crate::body::{Body, BodyError};
use crate::compress::Encoding;
use crate::relay::{Bounds, Ending, Pump, Stop, certainly_never_ran, down, head, timer, unless};
use crate::server::InFlight;
use crate::status::{Reason, Status};

/// A call as far as it is known before its body has come.
struct Incoming {
    service: Arc<GatewayService>,
    headers: HeaderMap,
    respond: SendResponse<Bytes>,
    deadline: Instant,
    in_flight: InFlight,
}

/// Takes a call inside its connection's poll. One that is refused, as one that must wait for its replica, costs no more
/// than one task; none at all if its body shows that it cannot be served.
pub(super) fn take(
    service: &Arc<GatewayService>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    cx: &mut Context<'_>,
) {
    let (parts, body) = request.into_parts();
    let deadline = match service.deadline(&parts.headers) {
        Ok(deadline) => deadline,
        Err(status) => return service.refuse(&mut respond, &status),
    };
    let in_flight = service.shared.begin();
    let mut call = Incoming {
        service: Arc::clone(service),
        headers: parts.headers,
        respond,
        deadline,
        in_flight,
    };
    if Encoding::of(&call.headers) != Encoding::Identity {
        tokio::spawn(call.compressed(body));
        return;
    }
    let mut arrival = Arrival::new(body, &service.shared);
    match arrival.poll(cx) {
        Poll::Ready(Ok(arrived)) => match call.route(&arrived) {
            Ok(way) if arrived.whole => {
                tokio::spawn(call.small(way, arrived.begun));
            }
            Ok(way) => {
                tokio::spawn(call.large(way, arrived, arrival.into_rest()));
            }
            Err(status) => service.refuse(&mut call.respond, &status),
        },
        Poll::Ready(Err(error)) => call.give_up(error),
        Poll::Pending => {
            tokio::spawn(call.arriving(arrival));
        }
    }
}

impl Incoming {
    fn give_up(mut self, error: BodyError) {
        match error {
            BodyError::Gone => {}
            BodyError::Refused(status) => self.service.refuse(&mut self.respond, &status),
        }
    }

    fn route(&self, arrived: &Arrived) -> Result<Way, Status> {
        self.service
            .resolve(&arrived.begun[PREFIX..], &arrived.head)
    }

    /// The body comes in pieces.
    async fn arriving(mut self, mut arrival: Arrival) {
        let still = self.service.shared.config().body_timeout();
        let arrived = {
            let mut timer = pin!(timer(Some(self.deadline)));
            let waiting = pin!(arrival.wait(still));
            unless(waiting, &mut self.respond, timer.as_mut()).await
        };
        match arrived {
            Err(stop) => self.stop(stop),
            Ok(Err(error)) => self.give_up(error),
            Ok(Ok(arrived)) => match self.route(&arrived) {
                Err(status) => self.service.refuse(&mut self.respond, &status),
                Ok(way) if arrived.whole => self.small(way, arrived.begun).await,
                Ok(way) => self.large(way, arrived, arrival.into_rest()).await,
            },
        }
    }

    /// The head cannot be read before the message is inflated; it goes on as it is then.
    async fn compressed(mut self, body: RecvStream) {
        let still = self.service.shared.config().body_timeout();
        let mut body = Body::new(body, &self.headers, &self.service.shared);
        let message = match body.only(still, self.deadline.into()).await {
            Ok(message) => message,
            Err(error) => return self.give_up(error),
        };
        drop(body);
        let head = match peek(&message, true) {
            Ok(Peek::Head(head)) => head,
            Ok(Peek::More) => unreachable!("a complete message needs no more"),
            Err(malformed) => {
                let status = Status::new(
                    Reason::InvalidRequest,
                    format!("not a ModelInferRequest: {malformed}"),
                );
                return self.service.refuse(&mut self.respond, &status);
            }
        };
        match self.service.resolve(&message, &head) {
            Ok(way) => self.small(way, framed(&message)).await,
            Err(status) => self.service.refuse(&mut self.respond, &status),
        }
    }

    /// The whole request is here.
    async fn small(mut self, way: Way, frame: Bytes) {
        let mut timer = pin!(timer(Some(self.deadline)));
        let asked = {
            let service = &*self.service;
            let metadata = metadata_for(&std::mem::take(&mut self.headers), &way);
            let (path, deadline) = (INFER.clone(), self.deadline);
            let request = Ask {
                way,
                frame,
                path,
                metadata,
                deadline,
            };
            let asking = pin!(ask(&service.gateway, service.thread, &request));
            unless(asking, &mut self.respond, timer.as_mut()).await
        };
        match asked {
            Ok(Ok(Answer {
                response,
                outstanding,
            })) => {
                self.down(None, response, outstanding, timer.as_mut()).await;
            }
            Ok(Err(status)) => self.service.refuse(&mut self.respond, &status),
            Err(stop) => self.stop(stop),
        }
    }

    /// The request's beginning is here, and the rest follows through us: it can be sent once only.
    async fn large(mut self, way: Way, arrived: Arrived, rest: RecvStream) {
        let service = Arc::clone(&self.service);
        let mut timer = pin!(timer(Some(self.deadline)));
        let metadata = metadata_for(&self.headers, &way);
        let opened = {
            let opening = pin!(open_somewhere(
                &service.gateway,
                service.thread,
                &way,
                &metadata,
                self.deadline
            ));
            unless(opening, &mut self.respond, timer.as_mut()).await
        };
        let ((mut response, stream), outstanding) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(status)) => return service.refuse(&mut self.respond, &status),
            Err(stop) => return self.stop(stop),
        };
        let longest = service.shared.config().max_message_bytes;
        let mut up =
            match Pump::new(rest, stream, longest).starting_with(arrived.begun, arrived.owed) {
                Ok(pump) => Some(pump),
                Err(status) => return service.refuse(&mut self.respond, &status),
            };
        let replica = outstanding.replica();
        match head(&mut up, &mut response, &mut self.respond, timer.as_mut()).await {
            Ok(response) => {
                replica.answered();
                self.down(up, response, outstanding, timer.as_mut()).await;
            }
            Err(stop) => {
                if matches!(&stop, Stop::Lost(error) if !certainly_never_ran(error)) {
                    replica.failed();
                }
                self.stop(stop);
            }
        }
    }

    async fn down(
        self,
        up: Option<Pump>,
        response: Response<RecvStream>,
        outstanding: Outstanding,
        timer: Pin<&mut Option<Sleep>>,
    ) {
        let config = self.service.shared.config();
        let bounds = Bounds {
            deadline: Some(self.deadline),
            max_message_bytes: config.max_message_bytes,
            still: config.body_timeout(),
        };
        let ending = down(up, response, self.respond, timer, bounds).await;
        if ending == Ending::Lost {
            outstanding.replica().failed();
        }
        drop(self.in_flight);
    }

    fn stop(mut self, stop: Stop) {
        if let Some(status) = stop.status(Some(self.deadline)) {
            self.service.refuse(&mut self.respond, &status);
        }
    }
}
