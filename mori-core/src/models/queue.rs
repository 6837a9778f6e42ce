//! The queue of notifications: each message to one reader, and nobody asleep beside a message or after the end.

use crate::id::{EngineKey, Tag};
use crate::notify::{Notification, NotificationQueue};
use crate::sync::{model, thread};

fn message(tag: u64) -> Notification {
    Notification {
        peer: EngineKey::from("a"),
        transfer: tag,
        tag: Tag(tag),
        message: Vec::new(),
        error: None,
    }
}

#[test]
fn each_message_reaches_one_reader() {
    model(|| {
        let queue = NotificationQueue::new(2);
        let readers = [queue.clone(), queue.clone()].map(|queue| thread::spawn(move || queue.wait(None)));
        queue.push(message(1)).unwrap();
        queue.push(message(2)).unwrap();
        let mut tags: Vec<u64> = readers.map(|reader| reader.join().unwrap().unwrap().tag.0).into();
        tags.sort_unstable();
        assert_eq!(tags, [1, 2]);
    });
}

#[test]
fn closing_releases_every_reader() {
    model(|| {
        let queue = NotificationQueue::new(2);
        let readers = [queue.clone(), queue.clone()].map(|queue| thread::spawn(move || queue.wait(None)));
        queue.close();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), None);
        }
    });
}
