//! Things that happen by themselves, and how they reach whoever reads them.

use crate::call::{put, take};
use crate::types::{ibv_async_event, number};
use crate::world::{Event, Handle, World, acknowledged, world};

/// Whether events of this kind name a queue pair.
fn is_of_pair(kind: u32) -> bool {
    matches!(kind, number::EVENT_QP_FATAL | number::EVENT_QP_REQ_ERR | number::EVENT_QP_ACCESS_ERR)
}

impl World {
    /// An open context gets an event.
    pub(crate) fn event(&mut self, context: Handle, event: Event) {
        let Some(open) = self.contexts.get_mut(&context) else { return };
        open.events.push_back(event);
        if !put(open.pipe.1, event.element) {
            self.misuse("nobody reads the events of a context".to_owned());
        }
    }

    /// The context of a queue pair gets an event of it.
    pub(crate) fn pair_event(&mut self, pair: Handle, kind: u32) {
        if let Some(context) = self.pairs.get(&pair).map(|pair| pair.context) {
            self.event(context, Event { kind, element: pair });
        }
    }

    /// Every context of a device gets an event.
    pub(crate) fn device_event(&mut self, device: usize, kind: u32, port: usize) {
        let contexts: Vec<Handle> = self
            .contexts
            .iter()
            .filter(|(_, open)| open.device == device)
            .map(|(&context, _)| context)
            .collect();
        for context in contexts {
            self.event(context, Event { kind, element: port });
        }
    }

    /// Takes an event that is not of something destroyed meanwhile.
    fn take_event(&mut self, context: Handle) -> Option<ibv_async_event> {
        let event = self.contexts.get_mut(&context)?.events.pop_front()?;
        if is_of_pair(event.kind) {
            self.pairs.get_mut(&event.element)?.unacknowledged += 1;
        } else if event.kind == number::EVENT_CQ_ERR {
            self.completions.get_mut(&event.element)?.unacknowledged_async += 1;
        }
        Some(ibv_async_event { element: event.element, event_type: event.kind })
    }
}

/// The next event of a context.
pub(crate) fn next(context: Handle) -> Result<ibv_async_event, i32> {
    let end = {
        let mut world = world();
        world.enter("ibv_get_async_event")?;
        match world.contexts.get(&context) {
            Some(open) => open.pipe.0,
            None => return Err(world.stranger("ibv_get_async_event", context)),
        }
    };
    loop {
        // Not under the lock: the descriptor may block.
        take(end)?;
        if let Some(event) = world().take_event(context) {
            return Ok(event);
        }
    }
}

/// An event was acknowledged.
pub(crate) fn acknowledge(event: ibv_async_event) {
    let mut world = world();
    let _ = world.enter("ibv_ack_async_event");
    let counted = if is_of_pair(event.event_type) {
        world.pairs.get_mut(&event.element).map(|pair| &mut pair.unacknowledged)
    } else if event.event_type == number::EVENT_CQ_ERR {
        world.completions.get_mut(&event.element).map(|queue| &mut queue.unacknowledged_async)
    } else {
        return;
    };
    match counted {
        Some(count) if *count > 0 => {
            *count -= 1;
            acknowledged();
        }
        Some(_) => world.misuse("ibv_ack_async_event: an event was acknowledged twice".to_owned()),
        None => {
            world.stranger("ibv_ack_async_event", event.element);
        }
    }
}
