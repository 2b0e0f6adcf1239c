//! The head of a message is found as soon as it is there, and never wrongly.

use headrace_tensor::{Head, Malformed, Peek, SequenceId, peek};

use crate::messages::{Choice, Request};

fn request() -> Request {
    let mut request = Request::new()
        .parameter("sequence_id", Choice::Uint(42))
        .input("x", "FP32", &[1, 4])
        .raw([0; 16]);
    request.version = "3".into();
    request.id = "id-7".into();
    request
}

fn head(bytes: &[u8], complete: bool) -> Option<Head> {
    match peek(bytes, complete).unwrap() {
        Peek::Head(head) => Some(head),
        Peek::More => None,
    }
}

#[test]
fn every_prefix_gives_the_whole_head_or_asks_for_more() {
    let message = request().bytes();
    let mut found = 0;
    for len in 0..=message.len() {
        let Some(head) = head(&message[..len], len == message.len()) else {
            continue;
        };
        found += 1;
        assert_eq!(head.model.text(&message), "m");
        assert_eq!(head.version.text(&message), "3");
        assert_eq!(head.id.text(&message), "id-7");
        assert_eq!(head.sequence_id, Some(SequenceId::Number(42)));
    }
    let tensors = 16 + 2 + 18 + 1;
    assert!(found > 10 && found < tensors, "{found}");
}

#[test]
fn fields_out_of_order_are_read_on_until_the_name_comes() {
    let late = [&[0x3a, 0x02, 1, 2][..], &[0x2a, 0x00], &[0x0a, 0x01, b'm']].concat();
    assert!(head(&late[..6], false).is_none());
    assert!(head(&late[..8], false).is_none());
    let first_tensor_after = [&late[..], &[0x3a]].concat();
    let found = head(&first_tensor_after, false).unwrap();
    assert_eq!(found.model.text(&late), "m");
    assert_eq!(head(&late, true).unwrap().model.text(&late), "m");
}

#[test]
fn a_whole_message_without_a_name_has_an_empty_one() {
    assert!(head(&[], false).is_none());
    assert!(head(&[], true).unwrap().model.is_empty());
}

#[test]
fn in_a_whole_message_the_last_name_wins_as_it_will_at_the_worker() {
    let message = [&[0x0a, 0x01, b'a'][..], &[0x2a, 0x00], &[0x0a, 0x01, b'b']].concat();
    assert_eq!(head(&message, true).unwrap().model.text(&message), "b");
}

#[test]
fn what_can_never_become_a_message_is_refused_from_its_prefix() {
    let absurd = [0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let inner = [0x0a, 0x01, b'm', 0x22, 0x02, 0x0a, 0x05];
    for bytes in [&absurd[..], &inner, &[0x08], &[0x00], &[0x0a, 1, 0xff]] {
        let error: Malformed = peek(bytes, false).unwrap_err();
        assert!(error.offset <= bytes.len());
    }
}

#[test]
fn a_whole_message_that_is_cut_short_is_refused_not_waited_for() {
    let cut = [0x0a, 0x01, b'm', 0x3a, 0x05, 1];
    assert_eq!(peek(&cut, true).unwrap_err().offset, 5);
    assert!(head(&cut[..2], false).is_none());
}
