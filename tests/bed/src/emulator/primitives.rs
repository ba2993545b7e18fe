//! The step of all algorithms: receives from peers, reduces with an input, keeps the result, sends it on.

use super::arithmetic::Elem;
use super::connection::Connection;
use super::executor::Control;
use super::functions::Proto;
use super::{ll, memory};

/// The connections of one operation on one channel.
#[derive(Debug)]
pub(crate) struct Primitives<'a> {
    pub(crate) control: &'a Control,
    pub(crate) proto: Proto,
    pub(crate) elem: Elem,
    pub(crate) slices_per_chunk: usize,
    pub(crate) steps_per_slice: u64,
    /// Bytes of a step of the SIMPLE protocol, which sets the smallest slice.
    pub(crate) step_bytes: usize,
    pub(crate) recv: Vec<Connection<'a>>,
    pub(crate) send: Vec<Connection<'a>>,
}

/// One step with `elems` elements.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Step {
    /// Take part of the data from the peers.
    pub(crate) recv: bool,
    /// Pass the result to the peers.
    pub(crate) send: bool,
    /// Address of this rank's own part.
    pub(crate) input: Option<usize>,
    /// Where the result goes.
    pub(crate) output: Option<usize>,
    pub(crate) elems: usize,
}

impl<'a> Primitives<'a> {
    pub(crate) async fn step(&mut self, step: Step) {
        match self.proto {
            Proto::Simple => self.simple(step).await,
            Proto::Ll | Proto::Ll128 => self.flagged(step).await,
        }
    }

    /// Slices of a chunk, each in a slot of its own. Counters show which slots are filled. An empty
    /// slice is a message, too.
    async fn simple(&mut self, step: Step) {
        let size = self.elem.size();
        let even = step.elems.div_ceil(16 * self.slices_per_chunk) * 16;
        let smallest = self.step_bytes / size * self.steps_per_slice as usize / 32;
        let slice = even.max(smallest);
        let mut done = 0;
        for _ in 0..self.slices_per_chunk {
            let elems = slice.min(step.elems - done);
            let bytes = elems * size;
            if step.recv {
                for conn in &self.recv {
                    conn.wait_filled(self.control, self.steps_per_slice).await;
                }
            }
            if step.send {
                for conn in &self.send {
                    conn.wait_free(self.control, self.steps_per_slice).await;
                    conn.announce(bytes);
                }
            }
            let mut sources: Vec<usize> = step.input.map(|input| input + done * size).into_iter().collect();
            if step.recv {
                sources.extend(self.recv.iter().map(Connection::slot));
            }
            let mut targets: Vec<usize> =
                step.output.map(|output| output + done * size).into_iter().collect();
            if step.send {
                targets.extend(self.send.iter().map(Connection::slot));
            }
            combine(self.elem, &sources, &targets, bytes);
            if step.recv {
                for conn in &mut self.recv {
                    self.control.received(bytes);
                    conn.transfer.message(bytes, bytes);
                    conn.post(self.steps_per_slice);
                }
            }
            if step.send {
                for conn in &mut self.send {
                    self.control.sent(bytes);
                    conn.transfer.message(bytes, bytes);
                    conn.post(self.steps_per_slice);
                }
            }
            done += elems;
        }
    }

    /// LL and LL128: a chunk in a slot, with flags between the data that show how far it is filled.
    async fn flagged(&mut self, step: Step) {
        let format = if self.proto == Proto::Ll { ll::LL } else { ll::LL128 };
        let bytes = step.elems * self.elem.size();
        let wire_bytes = format.wire_bytes(bytes);
        if step.send {
            for conn in &self.send {
                conn.wait_free(self.control, 1).await;
                conn.announce(wire_bytes);
            }
        }
        let mut data = step.input.map(|input| memory::bytes(input, bytes));
        if step.recv {
            for conn in &mut self.recv {
                let part = format.receive(self.control, conn.slot(), conn.step, bytes).await;
                match &mut data {
                    Some(data) => self.elem.add(data, &part),
                    None => data = Some(part),
                }
                self.control.received(wire_bytes);
                conn.transfer.message(bytes, wire_bytes);
                conn.post(1);
            }
        }
        let data = data.unwrap_or_default();
        if let Some(output) = step.output {
            memory::copy(output, data.as_ptr() as usize, data.len());
        }
        if step.send {
            for conn in &mut self.send {
                format.send(conn.slot(), conn.step, &data);
                self.control.sent(wire_bytes);
                conn.transfer.message(bytes, wire_bytes);
                if self.proto == Proto::Ll128 {
                    conn.post(1);
                } else {
                    conn.advance();
                }
            }
        }
    }

    /// Leaves the connections for the next operation.
    pub(crate) fn finish(self) -> impl Iterator<Item = Connection<'a>> {
        self.recv.into_iter().chain(self.send).inspect(Connection::save)
    }
}

/// Writes the sum of all sources to all targets.
fn combine(elem: Elem, sources: &[usize], targets: &[usize], bytes: usize) {
    let [first, others @ ..] = sources else { return };
    if others.is_empty() {
        for target in targets {
            memory::copy(*target, *first, bytes);
        }
        return;
    }
    let mut sum = memory::bytes(*first, bytes);
    for other in others {
        elem.add(&mut sum, &memory::bytes(*other, bytes));
    }
    for target in targets {
        memory::copy(*target, sum.as_ptr() as usize, bytes);
    }
}
