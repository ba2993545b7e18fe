//! Recordings that somebody has changed: whatever is in them, reading ends, and does not panic.

use std::fs;

use recording::{rows::RecordedSession, sinks::SessionFiles};

use crate::{recording_blocks, traces::recorded};

/// xorshift64: the same changes in every run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below as u64).unwrap()
    }
}

const ROUNDS: usize = 150;

#[test]
fn changed_recordings_are_read_or_refused() {
    for (name, seed) in [("net_steps", 1), ("nvlink_flow", 2)] {
        let recorded = recorded(name);
        let recorded = recorded.cut_to(1500);
        let folder = tempfile::tempdir().unwrap();
        recorded.record(&folder.path().join("recording"), 0..1500);
        let segment = folder.path().join("recording/recording/000001.nfr");
        let whole = recording_blocks::input_of(&fs::read(&segment).unwrap());
        assert!(whole.len() > 50_000, "{}", whole.len());
        let (mut random, mut read, mut damaged) = (Random(seed), 0, 0);
        for _ in 0..ROUNDS {
            let mut bytes = whole.clone();
            for _ in 0..=random.next(4) {
                let at = random.next(bytes.len());
                match random.next(4) {
                    0 => bytes[at] ^= 1 << random.next(8),
                    1 => bytes[at] = u8::MAX,
                    2 => bytes.truncate(at.max(64)),
                    _ => {
                        let from = random.next(bytes.len());
                        let len = random.next(64).min(bytes.len() - from.max(at));
                        bytes.copy_within(from..from + len, at);
                    }
                }
            }
            fs::write(&segment, recording_blocks::segment(&bytes)).unwrap();
            let Ok(read_again) = RecordedSession::open(&folder.path().join("recording")) else { continue };
            let Ok((done, _)) = read_again.read_all(SessionFiles::nowhere()) else { continue };
            read += 1;
            damaged += u64::from(done.damage.blocks + done.damage.bytes > 0 || done.is_cut);
        }
        assert!(read > ROUNDS / 2 && damaged > 0, "{read} read, {damaged} damaged");
    }
}
