//! What training does between its collectives, for some seconds: a rank, or all, computes on the CPU, evaluates on the
//! GPU, or writes a checkpoint, and then goes on. All ranks know of each phase, so that the same ones come in each run.

use std::fs::File;
use std::hint::black_box;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::emulator::Shared;
use crate::options::Options;

/// One of so many operations begins with a phase.
const RARELY: u64 = 150;
/// The shortest one.
const SHORTEST: f64 = 0.2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Compute,
    Evaluate,
    Checkpoint,
}

/// What `rank` does before operation `op`, and for how long, if anything.
fn of(longest: f64, ranks: u32, rank: u32, op: u64) -> Option<(Kind, Duration)> {
    let random = mixed(op);
    if !random.is_multiple_of(RARELY) {
        return None;
    }
    let kind = [Kind::Compute, Kind::Evaluate, Kind::Checkpoint][(random >> 16) as usize % 3];
    let is_for_all = kind != Kind::Checkpoint && (random >> 24).is_multiple_of(4);
    let chosen = (random >> 32) as u32 % ranks;
    if !is_for_all && chosen != rank {
        return None;
    }
    // As many of each order of magnitude; of each rank another time.
    let part = (mixed(random ^ u64::from(rank)) >> 11) as f64 / (1_u64 << 53) as f64;
    let longest = longest.max(SHORTEST);
    Some((kind, Duration::from_secs_f64(SHORTEST * (longest / SHORTEST).powf(part))))
}

/// SplitMix64.
fn mixed(number: u64) -> u64 {
    let mut value = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Goes through the phase that comes before this operation.
pub(crate) fn go(options: &Options, emulator: &Shared, rank: u32, op: u64, deadline: Instant) -> Result<()> {
    let Some(longest) = options.phases else { return Ok(()) };
    let Some((kind, length)) = of(longest, options.ranks, rank, op) else { return Ok(()) };
    let end = deadline.min(Instant::now() + length);
    match kind {
        Kind::Compute => compute(end),
        Kind::Evaluate => evaluate(emulator, rank, end),
        Kind::Checkpoint => checkpoint(end)?,
    }
    Ok(())
}

fn compute(end: Instant) {
    let mut value = 1_u64;
    while Instant::now() < end {
        for _ in 0..100_000 {
            value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}

/// Kernels of another kind, one after the other; the thread that launches them waits for each.
fn evaluate(emulator: &Shared, rank: u32, end: Instant) {
    while Instant::now() < end {
        let time = Duration::from_millis(40).min(end.saturating_duration_since(Instant::now()));
        let _kernel = emulator.compute(rank, time);
        std::thread::sleep(time);
    }
}

/// A file that is written in parts, and is gone when it is closed.
fn checkpoint(end: Instant) -> Result<()> {
    const PART: usize = 256 << 10;
    const LONGEST: u64 = 32 << 20;
    let path = std::env::temp_dir().join(format!("ncclflow-bed.{}.checkpoint", std::process::id()));
    let mut file = File::create(&path).context("making a checkpoint")?;
    std::fs::remove_file(&path).context("removing a checkpoint")?;
    let part = vec![0x5a_u8; PART];
    while Instant::now() < end {
        file.write_all(&part).context("writing a checkpoint")?;
        if file.stream_position()? >= LONGEST {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_of_all_kinds_and_of_all_ranks_and_not_too_long() {
        let all: Vec<(u32, Kind, Duration)> = (0..100_000)
            .flat_map(|op| {
                (0..4)
                    .filter_map(move |rank| of(30.0, 4, rank, op).map(|(kind, length)| (rank, kind, length)))
            })
            .collect();
        for kind in [Kind::Compute, Kind::Evaluate, Kind::Checkpoint] {
            for rank in 0..4 {
                let count = all.iter().filter(|phase| (phase.0, phase.1) == (rank, kind)).count();
                assert!(count > 20, "{kind:?} of rank {rank}: {count}");
            }
        }
        let seconds = all.iter().map(|phase| phase.2.as_secs_f64());
        let (shortest, longest) = seconds
            .fold((f64::MAX, 0.0), |(least, most): (f64, f64), next| (least.min(next), most.max(next)));
        assert!((0.2..0.3).contains(&shortest) && (25.0..=30.0).contains(&longest), "{shortest} {longest}");
    }
}
