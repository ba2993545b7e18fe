//! Baseline of the benches: the kernel's own uprobe tracer on the same functions. Nothing is fetched, and no
//! program reads the events.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// Place of tracefs, which is unmounted when dropped if this program mounted it.
pub(crate) struct Tracefs {
    path: PathBuf,
    mounted: bool,
}

/// Armed uprobes, removed when dropped.
pub(crate) struct Events<'a> {
    tracefs: &'a Tracefs,
    group: String,
    count: usize,
}

impl Tracefs {
    /// Uses the mounted tracefs, or mounts one on a folder of its own.
    pub(crate) fn open(scratch: &Path) -> Result<Self> {
        let usual = Path::new("/sys/kernel/tracing");
        if usual.join("uprobe_events").exists() {
            return Ok(Self { path: usual.to_path_buf(), mounted: false });
        }
        let path = scratch.join("tracefs");
        fs::create_dir_all(&path)?;
        let status = Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(&path).status()?;
        if !status.success() {
            bail!("tracefs cannot be mounted ({status})");
        }
        Ok(Self { path, mounted: true })
    }

    /// Arms a uprobe at each of these file offsets of the library.
    pub(crate) fn arm(&self, library: &Path, offsets: &[u64]) -> Result<Events<'_>> {
        let group = format!("ncclflow_bench_{}", std::process::id());
        let mut lines = String::new();
        for (number, offset) in offsets.iter().enumerate() {
            lines.push_str(&format_event(&group, number, library, *offset));
        }
        let events = Events { tracefs: self, group, count: offsets.len() };
        append(&self.path.join("uprobe_events"), &lines)?;
        self.enable(&events.group, true)?;
        Ok(events)
    }

    fn enable(&self, group: &str, on: bool) -> Result<()> {
        let switch = self.path.join("events").join(group).join("enable");
        fs::write(&switch, if on { "1" } else { "0" })
            .with_context(|| format!("writing `{}`", switch.display()))
    }
}

fn format_event(group: &str, number: usize, library: &Path, offset: u64) -> String {
    format!("p:{group}/f{number} {}:{offset:#x}\n", library.display())
}

fn append(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    let mut file = fs::File::options().append(true).open(path)?;
    // The kernel takes one line per write.
    for line in text.lines() {
        file.write_all(line.as_bytes()).with_context(|| format!("`{line}` to `{}`", path.display()))?;
    }
    Ok(())
}

impl Events<'_> {
    /// Returns the hits so far, by the kernel's own count.
    pub(crate) fn hits(&self) -> Result<u64> {
        let text = fs::read_to_string(self.tracefs.path.join("uprobe_profile"))?;
        let mut hits = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [.., name, count] = words[..]
                && let Some(number) = name.strip_prefix('f').and_then(|number| number.parse::<usize>().ok())
                && number < self.count
            {
                hits.insert(number, count.parse::<u64>()?);
            }
        }
        Ok(hits.values().sum())
    }
}

impl Drop for Events<'_> {
    fn drop(&mut self) {
        // This fails for uprobes that could not be armed.
        let _ = self.tracefs.enable(&self.group, false);
        for number in 0..self.count {
            let _ =
                append(&self.tracefs.path.join("uprobe_events"), &format!("-:{}/f{number}\n", self.group));
        }
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg(&self.path).status();
        }
    }
}
