//! `cargo xtask dist`: makes what a user installs, as a tarball and as a Debian package, with the checksums
//! of both. They have one static program, man pages, completions, a systemd unit, a container file, a
//! Kubernetes DaemonSet and a dashboard.

mod debian;
mod notices;
mod places;
mod staging;
mod static_program;
mod trial;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::{prerequisites, programs, tool};

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

    /// Install the package into a scratch folder, run the unit's command line with the unit's capabilities on
    /// a job on the real NCCL, and remove the package again (root)
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
    static_program::check(&program)?;
    let scratch = output.join(format!(".scratch-{}", std::process::id()));
    let made = make(args, &program, &output, &scratch);
    // What a failed run leaves is of no use.
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
    let notices = notices::notices(&args.target)?;
    fs::write(tree.join(notices::NAME), notices).context("writing the licences of others")?;
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
    tool::run(
        programs::cargo_command("build").args([
            "--profile",
            "dist",
            "--package",
            "ncclflow",
            "--target",
            target,
        ]),
        &format!("the static program for {target}"),
    )?;
    Ok(programs::target_folder()?.join(target).join("dist/ncclflow"))
}

/// The program's `--version`, which also shows that the program runs.
fn version(program: &Path) -> Result<String> {
    let output = tool::output(Command::new(program).arg("--version"))?;
    let text = String::from_utf8(output).context("the version is no text")?;
    let version = text.trim().strip_prefix("ncclflow ").map(str::to_owned);
    version.with_context(|| format!("`--version` said `{text}`"))
}

/// Makes the man pages and completions. xtask itself must build without the crate `ncclflow`, so an example
/// of that crate makes them.
fn generate(folder: &Path) -> Result<()> {
    let mut program = programs::cargo_command("run");
    program.args(["--package", "ncclflow", "--example", "man-and-completions", "--"]);
    tool::run(program.arg(folder), "the man pages and completions")
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
