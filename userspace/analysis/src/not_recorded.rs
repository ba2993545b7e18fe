//! What a recording lacks, and how to record it, in words.

use flow::{
    model::Sampling,
    session::{Level, SessionReport},
    text::joined,
};
use recording::rows::Read;

/// Begin of the sentences on recordings that have nothing.
pub(crate) const EMPTY: &str = "nothing of NCCL was recorded";

/// Returns the options of `record` that chose the ops whose messages are measured; `None`: all are.
pub(crate) fn sampled(session: &SessionReport) -> Option<String> {
    let Sampling { every, channels, min_bytes } = session.sampling?;
    let all = Sampling::default();
    let options = [
        (every != all.every, format!("--steps-every {every}")),
        (channels != all.channels, format!("--channels {}", channel_list(channels))),
        (min_bytes != all.min_bytes, format!("--min-bytes {min_bytes}")),
    ];
    let given = options.into_iter().filter(|(is_given, _)| *is_given).map(|(_, option)| option);
    Some(joined(given, " ")).filter(|options| !options.is_empty())
}

/// Returns a mask of channels as `--channels` takes it: `0-3,5`.
fn channel_list(mask: u64) -> String {
    let is_in = |channel: &u32| mask >> channel & 1 == 1;
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for channel in (0..u64::BITS).filter(is_in) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == channel => *last = channel,
            _ => ranges.push((channel, channel)),
        }
    }
    let range = |(first, last): (u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    joined(ranges.into_iter().map(range), ",")
}

/// Says how to measure messages that this recording does not; `None`: it measures all that can be.
pub(crate) fn how_to_measure(session: &SessionReport) -> Option<String> {
    match session.level {
        Some(Level::Steps) => sampled(session).map(|options| format!("record without {options}")),
        _ => Some("record with --level steps".to_owned()),
    }
}

/// Says why a recording has nothing. `of_calls`: it was to have calls of the API, and no ops.
pub(crate) fn why_empty(of_calls: bool, read: &Read) -> String {
    read.untold_launches().or_else(|| read.unknown_replays()).unwrap_or_else(|| {
        let what = if of_calls { "nothing was called" } else { "no operation began and ended" };
        format!("{what} meanwhile; `ncclflow dump` says whether the processes wait")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_said_by_the_options_that_left_it_out() {
        let of = |level: Level, every, channels, min_bytes| SessionReport {
            level: Some(level),
            sampling: Some(Sampling { every, channels, min_bytes }),
            ..SessionReport::default()
        };
        let how = |session: &SessionReport| how_to_measure(session);
        let sampled = of(Level::Steps, 10, 0b10_1111, 1 << 20);
        let expected = "record without --steps-every 10 --channels 0-3,5 --min-bytes 1048576";
        assert_eq!(how(&sampled).as_deref(), Some(expected));
        assert_eq!(how(&of(Level::Steps, 1, u64::MAX, 0)), None);
        let flow = SessionReport { level: Some(Level::Flow), ..SessionReport::default() };
        assert_eq!(how(&flow).as_deref(), Some("record with --level steps"));
    }
}
