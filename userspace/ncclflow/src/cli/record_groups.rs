//! Groups of options of `ncclflow record`, and how their values are written.

use inspect::identity::RankMapFile;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};
use trace::record::{FilesWhen, WindowOptions};

use clap::{
    Args, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

use super::quantities::{byte_count, seconds, seconds_from, size_from};
use analysis::export::words;
use flow::model::Sampling;

/// Choice of ops whose messages are measured.
#[derive(Clone, Copy, Debug, Args)]
pub struct SamplingArgs {
    /// With --level steps: measure one op of N
    ///
    /// By NCCL's own count: the same collectives on all ranks.
    #[arg(help_heading = "With --level steps", hide_long_help = true)]
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps_every: u64,

    /// With --level steps: measure only these channels, such as 0-3,8
    #[arg(help_heading = "With --level steps", hide_long_help = true)]
    #[arg(long, value_name = "LIST", default_value = "0-63", value_parser = channels)]
    pub channels: u64,

    /// With --level steps: measure only calls of at least so many bytes
    ///
    /// Also those of unknown size: before NCCL 2.23 all but reductions and reduce-scatters.
    #[arg(help_heading = "With --level steps", hide_long_help = true)]
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = byte_count)]
    pub min_bytes: u64,
}

impl SamplingArgs {
    pub(super) fn sampling(self) -> Sampling {
        Sampling { every: self.steps_every, channels: self.channels, min_bytes: self.min_bytes }
    }
}

/// Parses a list of numbers and ranges into a bit for each channel.
fn channels(text: &str) -> Result<u64, String> {
    let mut channels = 0;
    for part in words(text) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let number = text.trim().parse::<u32>().ok().filter(|number| *number < 64);
            number.ok_or_else(|| format!("`{text}` is not a channel: channels are numbered from 0 to 63"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("`{part}`: the first is larger than the last"));
        }
        channels |= (first..=last).fold(0, |channels, channel| channels | 1u64 << channel);
    }
    Ok(channels)
}

/// Parts of a recording that have folders of their own.
#[derive(Clone, Debug, Default, Args)]
pub struct WindowArgs {
    /// Record only while FILE exists, each time into a folder of its own
    ///
    /// A FILE that only processes in a container see opens windows of that container's processes.
    #[arg(help_heading = "Windows", hide_short_help = true, long, value_name = "FILE")]
    pub window_flag: Option<PathBuf>,

    /// Close a window when it has N ops
    ///
    /// Lines of proxy_flow, or calls. None is opened again before FILE has gone.
    #[arg(help_heading = "Windows", hide_long_help = true, long, value_name = "N", requires = "window_flag", value_parser = clap::value_parser!(u64).range(1..))]
    pub window_max_ops: Option<u64>,

    /// Close a window after TIME
    ///
    /// None is opened again before FILE has gone.
    #[arg(help_heading = "Windows", hide_long_help = true, long, value_name = "TIME", requires = "window_flag", value_parser = seconds)]
    pub window_max_secs: Option<Duration>,

    /// Close a window after N training iterations
    ///
    /// Iterations are found from the collectives that recur, and the files begin and end with one. Where none
    /// is found, the window is as long as FILE is there.
    #[arg(help_heading = "Windows", hide_short_help = true, long, value_name = "N", requires = "window_flag", conflicts_with = "window_max_ops", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub window_iterations: Option<u64>,

    /// A new window every TIME, and whenever SIGUSR1 comes
    #[arg(help_heading = "Windows", hide_short_help = true, long, value_name = "TIME", conflicts_with = "window_flag", value_parser = seconds)]
    pub rotate: Option<Duration>,
}

impl WindowArgs {
    /// Returns the library's options; `None`: the recording is one.
    pub fn options(&self) -> Option<WindowOptions> {
        let max_duration = self.window_max_secs.or(self.rotate);
        (self.window_flag.is_some() || self.rotate.is_some()).then(|| WindowOptions {
            flag: self.window_flag.clone(),
            max_ops: self.window_max_ops,
            max_duration,
            iterations: self.window_iterations,
        })
    }
}

/// Identity of ranks and job, where the processes themselves do not tell.
#[derive(Clone, Debug, Default, Args)]
pub struct WhoArgs {
    /// Ranks in the job, where the processes' environment does not have them (mp.spawn, Ray)
    ///
    /// Lines `PID RANK` or `HOST PID RANK`, or JSON, {"PID": RANK} or [{"host", "pid", "rank"}]. With --all
    /// it is read again when it changes.
    #[arg(help_heading = "Who is who", hide_long_help = true, long, value_name = "FILE", value_parser = rank_map)]
    pub rank_map: Option<RankMapFile>,

    /// Name of the job [default: SLURM_JOB_ID of the processes]
    #[arg(help_heading = "Who is who", hide_long_help = true, long, value_name = "NAME", value_parser = job_name)]
    pub job: Option<String>,
}

fn rank_map(path: &str) -> Result<RankMapFile, String> {
    RankMapFile::read(Path::new(path))
}

fn job_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.chars().count() > 128 || name.chars().any(char::is_control) {
        return Err("1 to 128 characters, no control characters".to_owned());
    }
    Ok(name.to_owned())
}

/// The line files, and what the output folder may take on the disk.
#[derive(Clone, Copy, Debug, Args)]
pub struct DiskArgs {
    /// When the .jsonl files and flow_rank are made of DIR/recording
    #[arg(help_heading = "Disk", hide_long_help = true, long, value_enum, value_name = "WHEN", default_value_t = FilesWhen::End)]
    pub files: FilesWhen,

    /// Most that these files of a recording or a window take together, as in 500M or 20G
    ///
    /// There they end, and `ncclflow export` makes the rest.
    #[arg(help_heading = "Disk", hide_long_help = true, long, value_name = "SIZE", default_value = "64M", value_parser = size_from(MIN_SIZE, MIB))]
    pub files_limit: u64,

    /// Most that DIR may take: 500M, 20G; the oldest goes
    ///
    /// K, M, G, T; without a letter, MiB. The oldest .jsonl files go first, then the oldest windows, or the
    /// oldest records.
    #[arg(help_heading = "Disk", hide_short_help = true, long, value_name = "SIZE", value_parser = size_from(MIN_SIZE, MIB))]
    pub max_size: Option<u64>,

    /// How old what is in DIR may become: 15m, 12h, 7d
    ///
    /// Older windows, or records, are removed.
    #[arg(help_heading = "Disk", hide_long_help = true, long, value_name = "TIME", value_parser = seconds_from(MIN_AGE))]
    pub max_age: Option<Duration>,

    /// Compress the .jsonl files of closed windows, and at the end
    #[arg(help_heading = "Disk", hide_short_help = true, long)]
    pub compress: bool,
}

/// The smallest limit of a folder.
const MIN_SIZE: u64 = 1 << 20;
/// Bytes of a size without a letter, as the sizes of buffers.
const MIB: u64 = 1 << 20;
/// The shortest age, in seconds: some blocks of a recording.
const MIN_AGE: u64 = 10;

/// Parses the address at which metrics are served: this host alone, unless the user says otherwise. `9690` is
/// port 9690 of the loopback address; others are taken as given.
pub(super) fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    let of_this_host = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if let Ok(port) = text.parse() {
        return Ok(of_this_host(port));
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        return port.parse().map(of_this_host).map_err(|_| format!("`{port}` is not a port"));
    }
    if let Some(port) = text.strip_prefix(':') {
        return Err(format!("which address? `{port}` is this host alone, `0.0.0.0:{port}` all of IPv4"));
    }
    text.parse()
        .map_err(|_| "expected a port, or an address and a port: 9690, 10.0.0.5:9690, [::]:9690".to_owned())
}

/// A value that is `auto` (`None`), or one of an enum's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auto<T>(pub Option<T>);

/// Parses `auto`, whose help is given, and the enum's values.
pub(super) fn auto_or<T: ValueEnum + Send + Sync + 'static>(
    help: &'static str,
) -> impl TypedValueParser<Value = Auto<T>> {
    let auto = PossibleValue::new("auto").help(help);
    let values = T::value_variants().iter().filter_map(T::to_possible_value);
    PossibleValuesParser::new(std::iter::once(auto).chain(values))
        .map(|text| Auto(T::from_str(&text, false).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_explicit_address_leaves_the_host() {
        for local in ["9690", "localhost:9690", "127.0.0.1:9690"] {
            assert_eq!(metrics_address(local).unwrap().to_string(), "127.0.0.1:9690");
        }
        assert_eq!(metrics_address("[::1]:1").unwrap().to_string(), "[::1]:1");
        assert_eq!(metrics_address("10.0.0.5:9690").unwrap().to_string(), "10.0.0.5:9690");
        for wrong in [":9690", "", "70000", "host", "10.0.0.5", "localhost:x"] {
            assert!(metrics_address(wrong).is_err(), "{wrong}");
        }
    }
}
