//! Ranks that are slower than the others, by the lines of a file (`--faults`) that may change while the job
//! runs: at the beginning of each iteration a rank reads what holds for it.
//!
//! ```text
//! RANK gpu PERCENT        its GPU computes longer
//! RANK host MS [EVERY]    its host sleeps before every EVERYth iteration (1); 0: before the next one only
//! ```

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Gpu { percent: f64 },
    Host { pause: Duration, every: u64 },
}

/// What slows a rank in one iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slowed {
    /// Sleep of the host.
    pub(crate) pause: Duration,
    /// The GPU computes so many times as long.
    pub(crate) times: f64,
}

/// The faults of one rank.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    file: Option<PathBuf>,
    text: String,
    kinds: Vec<Kind>,
    /// Iterations since the file has this text.
    age: u64,
}

impl Faults {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self { file, ..Self::default() }
    }

    /// Returns what holds for the iteration of `rank` that begins now. Without the file no rank is slowed.
    pub(crate) fn next(&mut self, rank: u32) -> Result<Slowed> {
        let text = self.file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        if text != self.text {
            self.kinds = parse(&text, rank)?;
            (self.text, self.age) = (text, 0);
        }
        let mut slowed = Slowed { pause: Duration::ZERO, times: 1.0 };
        for kind in &self.kinds {
            match *kind {
                Kind::Gpu { percent } => slowed.times += percent / 100.0,
                Kind::Host { pause, every } if self.age.checked_rem(every).unwrap_or(self.age) == 0 => {
                    slowed.pause += pause;
                }
                Kind::Host { .. } => {}
            }
        }
        self.age += 1;
        Ok(slowed)
    }
}

fn parse(text: &str, rank: u32) -> Result<Vec<Kind>> {
    let mut kinds = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let amount = |word: &str| {
            let amount: f64 = word.parse().with_context(|| format!("`{word}` in a fault"))?;
            if !(0.0..=1e6).contains(&amount) {
                bail!("`{line}`: from 0 to a million");
            }
            Ok(amount)
        };
        let (of, kind) = match words[..] {
            [of, "gpu", percent] => (of, Kind::Gpu { percent: amount(percent)? }),
            [of, "host", ms, ref rest @ ..] if rest.len() < 2 => {
                let every = rest.first().map_or(Ok(1), |every| every.parse())?;
                (of, Kind::Host { pause: Duration::from_secs_f64(amount(ms)? / 1e3), every })
            }
            _ => bail!("no fault: `{line}`"),
        };
        if of.parse::<u32>().with_context(|| format!("the rank of `{line}`"))? == rank {
            kinds.push(kind);
        }
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_slowed_by_its_own_lines_alone() {
        let text = "2 gpu 7.5\n1 host 20 10\n1 gpu 2\n0 host 500 0\n";
        assert_eq!(parse(text, 2).unwrap(), [Kind::Gpu { percent: 7.5 }]);
        assert_eq!(parse(text, 3).unwrap(), []);
        for wrong in ["2 gpu", "2 gpu -1", "2 gpu nan", "x gpu 1", "2 host 1 2 3", "2 disk 1", "2 host 1 -1"]
        {
            assert!(parse(wrong, 0).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pauses_come_in_their_rhythm_and_end_with_the_file() {
        let folder = std::env::temp_dir().join(format!("ncclflow-bed.{}.faults", std::process::id()));
        let mut faults = Faults::new(Some(folder.clone()));
        let mut pauses = |text: &str| -> Vec<u128> {
            std::fs::write(&folder, text).unwrap();
            (0..5).map(|_| faults.next(1).unwrap().pause.as_millis()).collect()
        };
        assert_eq!(pauses("1 host 20 3"), [20, 0, 0, 20, 0]);
        assert_eq!(pauses("1 host 500 0"), [500, 0, 0, 0, 0]);
        assert_eq!(pauses("1 host 2\n1 host 3"), [5; 5]);
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(faults.next(1).unwrap(), Slowed { pause: Duration::ZERO, times: 1.0 });
    }
}
