//! Of which ops messages are measured.

use clap::Args;

use flow::model::Sampling;

#[derive(Clone, Copy, Debug, Args)]
pub struct SamplingArgs {
    /// With --level steps: measure one op of N, by NCCL's own count: the same collectives on all ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps_every: u64,

    /// With --level steps: measure only these channels, such as 0-3,8
    #[arg(long, value_name = "LIST", default_value = "0-63", value_parser = channels)]
    pub channels: u64,

    /// With --level steps: measure only calls of at least so many bytes, or of unknown size (before NCCL 2.23
    /// all but reductions and reduce-scatters)
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub min_bytes: u64,
}

impl SamplingArgs {
    pub(super) fn sampling(self) -> Sampling {
        Sampling { every: self.steps_every, channels: self.channels, min_bytes: self.min_bytes }
    }
}

/// A bit for each channel of a list of numbers and ranges.
fn channels(text: &str) -> Result<u64, String> {
    let mut channels = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let number = text.trim().parse::<u32>().ok().filter(|number| *number < 64);
            number.ok_or_else(|| format!("`{text}` is no channel: they are numbered from 0 to 63"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("`{part}`: the first is larger than the last"));
        }
        channels |= (first..=last).fold(0, |channels, channel| channels | 1u64 << channel);
    }
    Ok(channels)
}
