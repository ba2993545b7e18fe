//! `cargo xtask nccl fetch`: puts official NCCL libraries, out of NVIDIA's wheels, into a cache outside the
//! repository.
//!
//! pip does the download, with the user's own index configuration. Of each wheel only the library is kept,
//! beside a `WHEEL.json` that says where it is from.

mod download;
pub(crate) mod official;
mod progress;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::tool::say;

use self::download::download;
pub(crate) use self::download::pip;
use self::progress::Progress;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Fetch libraries that are not in the cache yet
    Fetch(Fetch),
}

#[derive(Debug, clap::Args)]
struct Fetch {
    /// Like 2.27.5 (for CUDA 12), 2.28.9-cu13 or 2.28.9-cu12-aarch64; `all-bed` is the four that most tests
    /// run
    #[arg(value_name = "VERSION", required_unless_present = "list")]
    versions: Vec<String>,
    /// Show what is in the cache, and fetch nothing
    #[arg(long)]
    list: bool,
    /// Compute the sha256 of libraries that are there already, not only their size
    #[arg(long)]
    verify: bool,
}

/// Libraries that most tests run, one for each era of NCCL's work structs and each major version of CUDA,
/// with the sha256 of their wheels.
const BED: [(&str, &str); 4] = [
    ("2.21.5-cu12", "8579076d30a8c24988834445f8d633c697d42397e92ffc3f63fa26766d25e0a0"),
    ("2.27.5-cu12", "ad730cf15cb5d25fe849c6e6ca9eb5b76db16a80f13f425ac68d8e2e55624457"),
    ("2.28.9-cu13", "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42"),
    ("2.32.3-cu12", "bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c"),
];

/// Libraries of some tests, with the sha256 of their wheels: two that overwrite the sizes of sends, each with
/// the address in another place of its stack, and the first with NCCL's reliability service.
const OTHERS: [(&str, &str); 3] = [
    ("2.17.1-cu12", "0e8c73799b5cfa35fd4fb04c7a358ea6943b206de34ec83594fd0b0bf665387f"),
    ("2.19.3-cu12", "a9734707a2c96443331c1e48c717024aa6678a0e2a4cb66b2c364d18cee6b48d"),
    ("2.24.3-cu12", "e5c5167351e8936b96ddad8ac6f687199e22d09db07cf08af9457a123b34cac0"),
];

/// Returns the versions that the tests need.
pub(crate) fn tested_versions() -> impl Iterator<Item = &'static str> {
    BED.iter().chain(&OTHERS).map(|(version, _)| *version)
}

const LIBRARY: &str = "libnccl.so.2";
const LIBRARY_IN_WHEEL: &str = "nvidia/nccl/lib/libnccl.so.2";
const RECORD: &str = "WHEEL.json";

/// Origin of a library.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    wheel: String,
    wheel_sha256: String,
    library_sha256: String,
    library_size: u64,
}

/// A release for a major version of CUDA and a processor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    nccl: String,
    cuda: String,
    /// Processor, in the spelling of wheels.
    machine: &'static str,
}

/// Processors: the one of a wheel whose name in the cache does not name it, and the other one.
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];

impl Version {
    fn parse(text: &str) -> Result<Self> {
        let [usual, other] = MACHINES;
        let (release, machine) = match text.strip_suffix(other).and_then(|rest| rest.strip_suffix('-')) {
            Some(release) => (release, other),
            None => (text, usual),
        };
        let (nccl, cuda) = release.split_once('-').unwrap_or((release, "cu12"));
        let numeric = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        // A wheel may have been published again: 2.26.2.post1.
        let mut parts: Vec<&str> = nccl.split('.').collect();
        let _post = parts.pop_if(|last| last.strip_prefix("post").is_some_and(numeric));
        let nccl_is_good = parts.len() >= 3 && parts.into_iter().all(numeric);
        if !nccl_is_good || !cuda.strip_prefix("cu").is_some_and(numeric) {
            bail!("`{text}` is not a version like 2.27.5, 2.28.9-cu13 or 2.28.9-cu12-aarch64");
        }
        Ok(Self { nccl: nccl.to_owned(), cuda: cuda.to_owned(), machine })
    }

    /// Returns the name in the cache: `2.27.5-cu12`, `2.28.9-cu12-aarch64`.
    fn name(&self) -> String {
        let machine = if self.machine == MACHINES[0] { String::new() } else { format!("-{}", self.machine) };
        format!("{}-{}{machine}", self.nccl, self.cuda)
    }

    fn requirement(&self) -> String {
        format!("nvidia-nccl-{}=={}", self.cuda, self.nccl)
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Action::Fetch(fetch) = &args.action;
    if fetch.list {
        return list();
    }
    let mut versions: Vec<Version> = Vec::new();
    for text in &fetch.versions {
        if text == "all-bed" {
            versions.extend(BED.iter().map(|(name, _)| Version::parse(name)).collect::<Result<Vec<_>>>()?);
        } else {
            versions.push(Version::parse(text)?);
        }
    }
    for version in versions {
        println!("{}", fetch_one(&version, fetch.verify)?.display());
    }
    Ok(())
}

/// Returns the library of a version like `2.27.5` or `2.28.9-cu13`; fetches it when it is not in the cache.
pub(crate) fn library_path(version: &str) -> Result<PathBuf> {
    fetch_one(&Version::parse(version)?, false)
}

/// Tells whether a version is in the cache already.
pub(crate) fn is_cached(version: &str) -> Result<bool> {
    Ok(present(&cache()?.join(Version::parse(version)?.name()))?.is_some())
}

/// Removes a version from the cache.
pub(crate) fn forget(version: &str) -> Result<()> {
    let directory = cache()?.join(Version::parse(version)?.name());
    fs::remove_dir_all(&directory).with_context(|| format!("removing `{}`", directory.display()))
}

/// Returns the libraries of the cache.
pub(crate) fn cached_libraries() -> Result<Vec<PathBuf>> {
    let cache = cache()?;
    let entries = fs::read_dir(&cache).with_context(|| format!("reading `{}`", cache.display()))?;
    let libraries = entries.flatten().map(|entry| entry.path().join(LIBRARY));
    let mut libraries: Vec<PathBuf> = libraries.filter(|library| library.is_file()).collect();
    libraries.sort();
    Ok(libraries)
}

/// Returns another folder beside the cache of NCCL's libraries.
pub(crate) fn cache_folder(name: &str) -> Result<PathBuf> {
    let cache = cache()?;
    Ok(cache.parent().unwrap_or(&cache).join(name))
}

pub(crate) fn cache() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("NCCLFLOW_NCCL_CACHE").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    if let Some(path) = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()) {
        return Ok(Path::new(&path).join("ncclflow/nccl"));
    }
    let home = std::env::var_os("HOME").filter(|path| !path.is_empty());
    let home = home.ok_or_else(|| anyhow!("where to cache? set NCCLFLOW_NCCL_CACHE or HOME"))?;
    Ok(Path::new(&home).join(".cache/ncclflow/nccl"))
}

fn list() -> Result<()> {
    let cache = cache()?;
    say(&format!("cache: {}", cache.display()));
    let mut names: Vec<String> = BED.iter().map(|(name, _)| (*name).to_owned()).collect();
    if let Ok(entries) = fs::read_dir(&cache) {
        let there = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.extend(there.filter(|name| Version::parse(name).is_ok_and(|version| version.name() == *name)));
    }
    names.sort();
    names.dedup();
    for name in names {
        let directory = cache.join(&name);
        let state = match present(&directory) {
            Ok(Some(record)) => format!("{:>7.1} MB  {}", megabytes(record.library_size), record.wheel),
            Ok(None) => "not fetched".to_owned(),
            Err(error) => format!("damaged: {error:#}"),
        };
        say(&format!("{name:<12}  {state}"));
    }
    Ok(())
}

/// Reads the record of a complete library; `None` if there is no library.
fn present(directory: &Path) -> Result<Option<Record>> {
    let record = directory.join(RECORD);
    let text = match fs::read_to_string(&record) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading `{}`", record.display())),
    };
    let record: Record =
        serde_json::from_str(&text).with_context(|| format!("`{}` is not readable", record.display()))?;
    let library = directory.join(LIBRARY);
    let size = fs::metadata(&library).with_context(|| format!("looking at `{}`", library.display()))?.len();
    if size != record.library_size {
        bail!("`{}` has {size} bytes, not {}: remove the directory", library.display(), record.library_size);
    }
    Ok(Some(record))
}

fn fetch_one(version: &Version, verify: bool) -> Result<PathBuf> {
    let cache = cache()?;
    let directory = cache.join(version.name());
    let library = directory.join(LIBRARY);
    if let Some(record) = present(&directory)? {
        if verify {
            let mut progress = Progress::new(&format!("checking {}", version.name()), record.library_size);
            let found = hash(File::open(&library)?, &mut progress)?;
            progress.finish();
            if found != record.library_sha256 {
                bail!("`{}` has sha256 {found}, not {}", library.display(), record.library_sha256);
            }
        }
        say(&format!("NCCL {} is in the cache ({:.1} MB)", version.name(), megabytes(record.library_size)));
        return Ok(library);
    }
    fs::create_dir_all(&cache).with_context(|| format!("creating `{}`", cache.display()))?;
    let work = Workplace::new(&cache, version)?;
    let wheel = download(&version.requirement(), version.machine, &work.path("download"))?;
    install(version, &wheel, &work, &directory)?;
    Ok(library)
}

/// A directory in the cache, removed when dropped.
struct Workplace(PathBuf);

impl Workplace {
    fn new(cache: &Path, version: &Version) -> Result<Self> {
        let path = cache.join(format!(".{}.{}", version.name(), std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("creating `{}`", path.display()))?;
        Ok(Self(path))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            say(&format!("cannot remove `{}`: {error}", self.0.display()));
        }
    }
}

/// Takes the library out of the wheel, and puts it and its record in place at once.
fn install(version: &Version, wheel: &Path, work: &Workplace, directory: &Path) -> Result<()> {
    let name = wheel.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut progress = Progress::new(&format!("checking {name}"), fs::metadata(wheel)?.len());
    let wheel_sha256 = hash(File::open(wheel)?, &mut progress)?;
    progress.finish();
    match BED.iter().chain(&OTHERS).find(|(known, _)| *known == version.name()) {
        Some((_, wanted)) if *wanted != wheel_sha256 => {
            bail!(
                "{name} has sha256 {wheel_sha256}, not {wanted}: another file than the one this project knows"
            )
        }
        Some(_) => say(&format!("{name}: sha256 as expected")),
        None => say(&format!("{name}: sha256 {wheel_sha256}, not known to this project and taken as it is")),
    }
    let mut archive =
        zip::ZipArchive::new(File::open(wheel)?).with_context(|| format!("{name} is no zip file"))?;
    let entry = archive
        .by_name(LIBRARY_IN_WHEEL)
        .with_context(|| format!("{name} does not hold {LIBRARY_IN_WHEEL}"))?;
    let library_size = entry.size();
    let place = work.path("whole");
    fs::create_dir_all(&place)?;
    let mut progress = Progress::new(&format!("unpacking {LIBRARY}"), library_size);
    let library = File::create(place.join(LIBRARY))?;
    let library_sha256 = copy(entry, Some(&library), &mut progress)
        .map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => anyhow!("the disk is full: {LIBRARY} has {library_size} bytes"),
            _ => error.into(),
        })
        .with_context(|| format!("unpacking `{}`", place.join(LIBRARY).display()))?;
    progress.finish();
    library.sync_all()?;
    make_executable(&library)?;
    let record = Record { wheel: name, wheel_sha256, library_sha256, library_size };
    fs::write(place.join(RECORD), serde_json::to_string_pretty(&record)? + "\n")?;
    match fs::rename(&place, directory) {
        Ok(()) => Ok(()),
        // Another process was faster; its copy is as good.
        Err(_) if present(directory).is_ok_and(|record| record.is_some()) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("putting `{}` in place", directory.display())),
    }
}

fn make_executable(file: &File) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(file.set_permissions(fs::Permissions::from_mode(0o755))?)
}

/// Computes the sha256 of a file, in hexadecimal digits.
pub(crate) fn sha256(path: &Path) -> Result<String> {
    let file = File::open(path).with_context(|| format!("opening `{}`", path.display()))?;
    hash(file, &mut Progress::unbounded(&format!("checking {}", path.display())))
}

fn hash(from: impl Read, progress: &mut Progress) -> Result<String> {
    Ok(copy(from, None, progress)?)
}

/// Copies all bytes, or only reads them, and returns their sha256.
fn copy(mut from: impl Read, to: Option<&File>, progress: &mut Progress) -> io::Result<String> {
    let mut buffer = vec![0; 1 << 20];
    let mut hash = Sha256::new();
    let mut done = 0;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        if let Some(mut to) = to {
            to.write_all(&buffer[..count])?;
        }
        done += count as u64;
        progress.set(done);
    }
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('?');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let version = Version::parse("2.27.5").unwrap();
        assert_eq!(
            (version.name().as_str(), version.requirement().as_str()),
            ("2.27.5-cu12", "nvidia-nccl-cu12==2.27.5")
        );
        assert_eq!(Version::parse("2.28.9-cu13").unwrap().requirement(), "nvidia-nccl-cu13==2.28.9");
        let arm = Version::parse("2.28.9-cu13-aarch64").unwrap();
        assert_eq!((arm.name().as_str(), arm.machine), ("2.28.9-cu13-aarch64", "aarch64"));
        assert_eq!(arm.requirement(), "nvidia-nccl-cu13==2.28.9");
        assert_eq!(Version::parse("2.26.2.post1").unwrap().requirement(), "nvidia-nccl-cu12==2.26.2.post1");
        for bad in [
            "",
            "2.27",
            "2.27.post1",
            "2.27.5.post",
            "2.27.5-",
            "2.27.5-12",
            "../2.1.1",
            "2.27.x",
            "2.27.5-cu12/..",
            "2.27.5-cu12-arm",
            "-aarch64",
        ] {
            assert!(Version::parse(bad).is_err(), "{bad}");
        }
    }
}
