//! PAT, the all-gather and reduce-scatter in logarithmic time: each rank's part travels its distance
//! in steps of powers of two.
//!
//! NCCL's kernels take the parts in another order, so that few of them wait in buffers. The proxies see the
//! same: each peer gets as many messages as `ncclProxySaveOp` counts. A message that is not needed is sent
//! empty. With fewer or more messages the proxies would wait for ever.

use nccl_library::nccl::Pattern;

use super::connection::Connection;
use super::executor::Control;
use super::functions::Coll;
use super::kernel::{Block, CollWork, Share};
use super::memory;
use super::primitives::Primitives;

/// The messages over one distance.
#[derive(Debug)]
struct Dimension {
    distance: usize,
    /// Distances of the parts that travel it: its odd multiples.
    parts: Vec<usize>,
    messages: usize,
}

impl Dimension {
    /// The parts of each message.
    fn messages(&self) -> impl Iterator<Item = &[usize]> {
        let share = self.parts.len().div_ceil(self.messages.max(1)).max(1);
        (0..self.messages).map(move |message| {
            let begin = (message * share).min(self.parts.len());
            &self.parts[begin..(begin + share).min(self.parts.len())]
        })
    }
}

pub(crate) async fn run(block: &Block<'_>, work: &CollWork) {
    let (ranks, gathers) = (block.ranks(), work.func.coll == Coll::AllGather);
    let rank = usize::try_from(block.kernel.rank).unwrap_or(0);
    let dimensions = dimensions(block, work, ranks, gathers);
    // A reduce-scatter sends to ranks above, an all-gather to ranks below.
    let above: Vec<usize> = dimensions.iter().map(|dimension| (rank + dimension.distance) % ranks).collect();
    let below: Vec<usize> =
        dimensions.iter().map(|dimension| (rank + ranks - dimension.distance) % ranks).collect();
    let (from, to) = if gathers { (above, below) } else { (below, above) };
    let mut prims = block.primitives(&work.func, &from, &to);
    for (place, elems) in work.chunks() {
        let of_rank = |distance: usize| place + (rank + distance) % ranks * work.count;
        if gathers {
            let parts: Vec<usize> = (0..ranks).map(|distance| work.output(of_rank(distance))).collect();
            memory::copy(parts[0], work.input(place), elems * work.elem.size());
            gather(&mut prims, &dimensions, &parts, elems).await;
        } else {
            let input = |distance| memory::bytes(work.input(of_rank(distance)), elems * work.elem.size());
            let mut sums: Vec<Vec<u8>> = (0..ranks).map(input).collect();
            reduce(&mut prims, &dimensions, &mut sums).await;
            memory::copy(work.output(place), sums[0].as_ptr() as usize, sums[0].len());
        }
    }
    block.finish(work, prims);
}

/// From the smallest distance on. None without a rule for the version: then nothing moves, and
/// the operation never ends.
fn dimensions(block: &Block<'_>, work: &CollWork, ranks: usize, gathers: bool) -> Vec<Dimension> {
    let pattern = if gathers { Pattern::PatDown } else { Pattern::PatUp };
    let messages = block.kernel.layout.pat.and_then(|rule| {
        let Share::Part { count, chunk, .. } = work.share else { return None };
        let [chunk, bytes] = [chunk, count].map(|count| (count * work.elem.size()) as u64);
        // NCCL counts messages for all chunks together, and each chunk has the same number.
        let all = rule.messages(pattern, ranks as u64, chunk, bytes)?;
        Some(all.into_iter().map(|messages| messages / bytes.div_ceil(chunk)).collect::<Vec<_>>())
    });
    let with_distance = |(bit, messages): (u32, u64)| {
        let distance = 1 << bit;
        let parts = (distance..ranks).step_by(2 * distance).collect();
        Dimension { distance, parts, messages: messages as usize }
    };
    (0..).zip(messages.unwrap_or_default()).map(with_distance).collect()
}

/// Every part that came over larger distances is passed on over the smaller ones.
async fn gather(prims: &mut Primitives<'_>, dimensions: &[Dimension], parts: &[usize], elems: usize) {
    let bytes = elems * prims.elem.size();
    for (at, dimension) in dimensions.iter().enumerate().rev() {
        for message in dimension.messages() {
            let sent = message.iter().map(|part| memory::bytes(parts[part - dimension.distance], bytes));
            send(prims.control, &mut prims.send[at], &sent.collect::<Vec<_>>().concat()).await;
            let came = receive(prims.control, &mut prims.recv[at], message.len() * bytes).await;
            for (part, came) in message.iter().zip(came.chunks(bytes)) {
                memory::copy(parts[*part], came.as_ptr() as usize, came.len());
            }
        }
    }
}

/// The same backwards: sums over the smaller distances are passed on over the larger ones.
async fn reduce(prims: &mut Primitives<'_>, dimensions: &[Dimension], sums: &mut [Vec<u8>]) {
    let bytes = sums[0].len();
    for (at, dimension) in dimensions.iter().enumerate() {
        for message in dimension.messages() {
            let sent: Vec<u8> = message.iter().flat_map(|part| sums[*part].iter().copied()).collect();
            send(prims.control, &mut prims.send[at], &sent).await;
            let came = receive(prims.control, &mut prims.recv[at], message.len() * bytes).await;
            for (part, came) in message.iter().zip(came.chunks(bytes)) {
                prims.elem.add(&mut sums[part - dimension.distance], came);
            }
        }
    }
}

async fn send(control: &Control, to: &mut Connection<'_>, data: &[u8]) {
    to.wait_free(control, 1).await;
    to.announce(data.len());
    memory::copy(to.slot(), data.as_ptr() as usize, data.len());
    to.transfer.message(data.len(), data.len());
    to.post(1);
}

async fn receive(control: &Control, from: &mut Connection<'_>, bytes: usize) -> Vec<u8> {
    from.wait_filled(control, 1).await;
    let data = memory::bytes(from.slot(), bytes);
    from.transfer.message(bytes, bytes);
    from.post(1);
    data
}
