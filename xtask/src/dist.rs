//! `cargo xtask dist`: makes the files that users install, for each processor: a tarball, a wheel, a Debian
//! and an RPM package of the packaged program, and the rescue program by itself; with a list of the parts of
//! each (CycloneDX), and the checksums of all.

mod chart;
mod debian;
mod notices;
mod parts_list;
mod places;
mod program;
mod rpm;
mod staging;
mod trial;
mod wheel;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use self::trial::Trial;
use crate::{programs, tool};

/// Version of everything that is made: the workspace's.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask dist                         all that is released, in target/packages
  cargo xtask dist --quick --try           as CI does: not optimised, and each tried where it is installed
  cargo xtask dist --target x86_64-unknown-linux-gnu --no-packages
  cargo xtask dist --check target/release/ncclflow    fails if it needs a glibc newer than 2.28")]
pub(crate) struct Args {
    /// What to build for: glibc (packages) or musl (the rescue program: static, without NVML)
    #[arg(
        long,
        value_name = "TRIPLES",
        value_delimiter = ',',
        default_value = "x86_64-unknown-linux-gnu,aarch64-unknown-linux-gnu,x86_64-unknown-linux-musl"
    )]
    target: Vec<String>,

    /// Where to put it [default: packages/ in cargo's target folder]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// No optimisation, for tries: built sooner
    #[arg(long)]
    quick: bool,

    /// No Debian and no RPM package (where there is no dpkg-deb or rpmbuild)
    #[arg(long)]
    no_packages: bool,

    /// Install each into something clean (Debian 11 and 12, a virtual environment of Python, an image), use
    /// it there on jobs of the real NCCL, and remove it again (root)
    #[arg(long, conflicts_with = "no_packages")]
    r#try: bool,

    /// Build nothing: say whether this program runs on all systems that the packaged one is for
    #[arg(long, value_name = "FILE", conflicts_with_all = ["try", "quick", "output"])]
    check: Option<PathBuf>,
}

/// Files that were made for one target.
#[derive(Debug, Deserialize, Serialize)]
struct Made {
    target: String,
    /// Staged folder: the program, pages, completions, documents.
    tree: PathBuf,
    /// Files that users download.
    files: Vec<PathBuf>,
}

impl Made {
    fn program(&self) -> PathBuf {
        self.tree.join("ncclflow")
    }

    /// Returns the file of this kind, by the end of its name.
    fn file(&self, end: &str) -> Result<&Path> {
        let found = self.files.iter().find(|file| file.to_string_lossy().ends_with(end));
        found.map(PathBuf::as_path).with_context(|| format!("no {end} was made for {}", self.target))
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(file) = &args.check {
        return program::check(file, args.target.first().map_or("", String::as_str));
    }
    let output = match &args.output {
        Some(output) => output.clone(),
        None => programs::target_folder()?.join("packages"),
    };
    fs::create_dir_all(&output).with_context(|| format!("making `{}`", output.display()))?;
    let scratch = output.join(format!(".scratch-{}", std::process::id()));
    let made = make_all(args, &output, &scratch);
    // A failed run's files are of no use.
    let _ = fs::remove_dir_all(&scratch);
    for path in made? {
        eprintln!("{:>8} KiB  {}", fs::metadata(&path)?.len() >> 10, path.display());
    }
    Ok(())
}

/// Arguments with which `cargo xtask dist --try` runs itself as root.
#[derive(Debug, clap::Args)]
pub(crate) struct TrialArgs {
    /// What is to be tried
    note: PathBuf,
}

pub(crate) fn run_trial(args: &TrialArgs) -> Result<()> {
    Trial::run_noted(&args.note)
}

fn make_all(args: &Args, output: &Path, scratch: &Path) -> Result<Vec<PathBuf>> {
    let profile = if args.quick { program::QUICK } else { "dist" };
    let pages = scratch.join("generated");
    generate(&pages)?;
    let mut all = Vec::new();
    for target in &args.target {
        let program = program::build("ncclflow", target, profile)?.join("ncclflow");
        program::check(&program, target)?;
        let name = format!("ncclflow-{VERSION}-{target}");
        let tree = scratch.join(&name);
        staging::fill(&tree, &program, &pages)?;
        fs::write(tree.join(notices::NAME), notices::notices(target)?)
            .context("writing the licences of others")?;
        let parts = parts_list::write(target, &program, output)?;
        let mut files = if program::is_static(target) {
            let bare = output.join(&name);
            staging::copy(&program, &bare, 0o755)?;
            vec![bare]
        } else {
            package(args, target, &tree, &scratch.join("packages").join(target), output)?
        };
        files.push(parts);
        all.push(Made { target: target.clone(), tree, files });
    }
    let mut files: Vec<PathBuf> = all.iter().flat_map(|made| made.files.clone()).collect();
    if let Some(made) = all.iter().find(|_| !args.no_packages) {
        files.push(chart::pack(&made.tree, VERSION, output)?);
    }
    files.push(sums(&files, output)?);
    if args.r#try {
        Trial::prepare(all, profile, &scratch.join("trial"))?.run()?;
    }
    Ok(files)
}

fn package(args: &Args, target: &str, tree: &Path, scratch: &Path, output: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![
        staging::pack(tree, output)?,
        wheel::pack(&scratch.join("wheel"), tree, VERSION, target, output)?,
    ];
    if !args.no_packages {
        files.push(debian::pack(&scratch.join("deb"), tree, VERSION, target, output)?);
        files.push(rpm::pack(&scratch.join("rpm"), tree, VERSION, target, output)?);
    }
    Ok(files)
}

/// Makes the man pages and completions. xtask itself must build without the crate `ncclflow`, so an example
/// of that crate makes them.
fn generate(folder: &Path) -> Result<()> {
    let program = programs::build_all()?.join("examples/man-and-completions");
    tool::run(Command::new(program).arg(folder), "the man pages and completions")
}

/// Writes the checksums in the format of sha256sum(1).
fn sums(files: &[PathBuf], output: &Path) -> Result<PathBuf> {
    let mut text = String::new();
    for path in files {
        let bytes = fs::read(path).with_context(|| format!("reading `{}`", path.display()))?;
        for byte in Sha256::digest(&bytes) {
            write!(text, "{byte:02x}")?;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        writeln!(text, "  {name}")?;
    }
    let path = output.join("SHA256SUMS");
    fs::write(&path, text).with_context(|| format!("writing `{}`", path.display()))?;
    Ok(path)
}
