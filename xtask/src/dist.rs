//! `cargo xtask dist`: what a user installs. One static program, with man pages, completions, a systemd unit, a container file, a
//! Kubernetes DaemonSet and a dashboard, as a tarball and as a Debian package; and the sums of both.

mod debian;
mod staging;
mod statically;
mod trial;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::{prerequisites, programs, repository};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to build for
    #[arg(long, value_name = "TRIPLE", default_value = prerequisites::STATIC_TARGET)]
    target: String,

    /// Where to put it [default: packages/ in cargo's target folder]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// No Debian package (where there is no dpkg-deb)
    #[arg(long)]
    no_deb: bool,

    /// Install the package into a scratch folder, run the unit's command line with the unit's capabilities on a job on the real NCCL, and
    /// remove the package again (root)
    #[arg(long, conflicts_with = "no_deb")]
    r#try: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let output = match &args.output {
        Some(output) => output.clone(),
        None => programs::target_folder()?.join("packages"),
    };
    fs::create_dir_all(&output).with_context(|| format!("making `{}`", output.display()))?;
    let program = build(&args.target)?;
    statically::check(&program)?;
    let scratch = output.join(format!(".scratch-{}", std::process::id()));
    let made = make(args, &program, &output, &scratch);
    // What is left of a failure is of no use, and must not be in the way.
    let _ = fs::remove_dir_all(&scratch);
    for path in made? {
        eprintln!("{}", path.display());
    }
    Ok(())
}

fn make(args: &Args, program: &Path, output: &Path, scratch: &Path) -> Result<Vec<PathBuf>> {
    let version = version(program)?;
    let pages = scratch.join("generated");
    generate(&pages)?;
    let name = format!("ncclflow-{version}-{}", args.target);
    let tree = scratch.join(&name);
    staging::fill(&tree, program, &pages)?;
    let mut made = vec![staging::pack(scratch, &name, output)?];
    if !args.no_deb {
        let package = debian::pack(&scratch.join("deb"), &tree, &version, &args.target, output)?;
        if args.r#try {
            trial::run(&package, &scratch.join("root"))?;
        }
        made.push(package);
    }
    made.push(sums(&made, output)?);
    Ok(made)
}

fn build(target: &str) -> Result<PathBuf> {
    prerequisites::rust_target(target)?;
    eprintln!("building ncclflow for {target}");
    let status = Command::new(programs::cargo())
        .args([
            "build",
            "--quiet",
            "--locked",
            "--profile",
            "dist",
            "--package",
            "ncclflow",
            "--target",
            target,
        ])
        .current_dir(repository::root())
        .status()
        .context("starting cargo build")?;
    if !status.success() {
        bail!("the build failed ({status})");
    }
    Ok(programs::target_folder()?.join(target).join("dist/ncclflow"))
}

/// What the program says of itself: so that it runs is seen too.
fn version(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("starting `{}`", program.display()))?;
    let text = String::from_utf8(output.stdout).context("the version is no text")?;
    let version = text.trim().strip_prefix("ncclflow ").map(str::to_owned);
    version.with_context(|| format!("`--version` said `{text}`"))
}

/// The man pages and completions. xtask itself must build without the ncclflow crate, so an example of that makes them.
fn generate(folder: &Path) -> Result<()> {
    let status = Command::new(programs::cargo())
        .args([
            "run",
            "--quiet",
            "--locked",
            "--package",
            "ncclflow",
            "--example",
            "man-and-completions",
            "--",
        ])
        .arg(folder)
        .current_dir(repository::root())
        .status()
        .context("starting cargo run")?;
    if !status.success() {
        bail!("the man pages were not made ({status})");
    }
    Ok(())
}

/// In the format of sha256sum(1).
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
