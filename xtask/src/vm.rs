//! `cargo xtask vm`: runs a command under another kernel, in a virtual machine that has this machine's files.
//!
//! Kernels differ in what the verifier accepts and in which links they have, and production hosts have older
//! kernels than developers. The virtual machine has this machine's root file system, which QEMU gives it
//! read-only, under an overlay in memory. So programs, libraries and tests that are built here run there
//! without change, and leave nothing behind.
//!
//! A machine of another processor has a Debian of its own in that place, and sees this repository, the libraries
//! of the cache, and the programs that were built for it.

mod initramfs;
mod kernel;
mod system;

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio, exit},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};

use self::{
    kernel::Kernel,
    system::{Arch, System},
};
use crate::{programs, root};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Installs qemu-system-x86, busybox-static, cpio and kmod where they are missing. The kernel is one of Debian's or
Ubuntu's, as packages:

  apt-get download linux-image-6.1.0-48-amd64
  cargo xtask vm --package linux-image-6.1.0-48-amd64_*.deb -- uname -r

Ubuntu has the modules in a package of their own, which is needed too:

  cargo xtask vm --package linux-image-unsigned-5.15.0-*.deb --package linux-modules-5.15.0-*.deb -- \\
      target/debug/ncclflow doctor

An arm64 machine needs no packages: it has Debian's kernel 6.1 and programs, which are fetched (debootstrap) and kept,
and this workspace's programs, which are built for it and are first in PATH:

  cargo xtask vm --arch arm64 -- ncclflow doctor

Exits as the command does.")]
pub(crate) struct Args {
    /// The machine's processor
    #[arg(long, value_name = "NAME", default_value = "x86-64")]
    arch: Arch,

    /// A kernel's package, and those of its modules
    #[arg(long = "package", value_name = "DEB", required_unless_present = "arch")]
    packages: Vec<PathBuf>,

    /// How QEMU runs it: `kvm`, or `tcg`, which needs nothing and is some twenty times slower
    #[arg(long, value_name = "NAME", default_value = "tcg")]
    accelerator: String,

    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,

    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    memory: u32,

    /// The machine is switched off after this time
    #[arg(long, value_name = "SECS", default_value_t = 600)]
    timeout: u32,

    /// Found as it is here, run as root in this directory, with this environment's NCCLFLOW_…, HOME and PATH
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<String>,
}

impl Args {
    fn of(arch: Arch, accelerator: &str, command: Vec<String>, timeout: Duration) -> Self {
        let timeout = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
        let accelerator = accelerator.to_owned();
        Self { arch, packages: Vec::new(), accelerator, cpus: 2, memory: 4096, timeout, command }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let system = System::of(args.arch)?;
    let (code, _) = run_in(&system, args, io::stdout())?;
    exit(code)
}

/// Runs a command under a kernel of these packages. Returns its exit status, and what it printed.
pub(crate) fn run_under(
    packages: &[PathBuf],
    accelerator: &str,
    command: &[&str],
    timeout: Duration,
) -> Result<(i32, String)> {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    let args = Args { packages: packages.to_vec(), ..Args::of(Arch::X86_64, accelerator, command, timeout) };
    let (code, printed) = run_in(&System::of(args.arch)?, &args, Vec::new())?;
    Ok((code, String::from_utf8_lossy(&printed).into_owned()))
}

/// Runs one of the workspace's programs in an arm64 machine. `program`: its path in the folder of programs;
/// `require`: things whose absence fails a test there. Returns its exit status, and what it printed.
pub(crate) fn run_on_arm64(
    program: &str,
    require: &str,
    arguments: impl IntoIterator<Item = String>,
    timeout: Duration,
) -> Result<(i32, String)> {
    let system = System::of(Arch::Arm64)?;
    let program = system.programs.as_deref().unwrap_or(Path::new("")).join(program);
    let program = program.to_str().context("the target folder has an odd name")?.to_owned();
    let mut command = vec!["env".to_owned(), format!("NCCLFLOW_REQUIRE={require}"), program];
    command.extend(arguments);
    let args = Args::of(Arch::Arm64, "tcg", command, timeout);
    let (code, printed) = run_in(&system, &args, Vec::new())?;
    Ok((code, String::from_utf8_lossy(&printed).into_owned()))
}

/// Runs the machine. Returns the command's exit status, and where its output was written to.
fn run_in<W: Write + Send + 'static>(system: &System, args: &Args, out: W) -> Result<(i32, W)> {
    root::become_root("a virtual machine of this machine's own files")?;
    let folder = programs::target_folder()?.join(format!("vm-{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| format!("making `{}`", folder.display()))?;
    let kernel = if args.packages.is_empty() {
        Kernel::of(&system.root)
    } else {
        Kernel::unpack(&args.packages, &folder)
    };
    let made = kernel.and_then(|kernel| {
        let initramfs = initramfs::make(system, &kernel, &args.command, args.memory, &folder)?;
        eprintln!("Linux {} ({}), by {}", kernel.release, args.arch.name(), args.accelerator);
        boot(args, &kernel.image, &initramfs, out)
    });
    let _ = fs::remove_dir_all(&folder);
    made
}

/// Boots the machine and writes what the command prints.
fn boot<W: Write + Send + 'static>(args: &Args, image: &Path, initramfs: &Path, out: W) -> Result<(i32, W)> {
    let emulator = args.arch.emulator();
    let mut machine = Command::new(emulator.program);
    machine.args(emulator.options).args(["-accel", &args.accelerator]);
    machine.args(["-nic", "none", "-nographic", "-no-reboot"]);
    machine.args(["-smp", &args.cpus.to_string(), "-m", &args.memory.to_string()]);
    // multidevs: keeps inode numbers of different file systems apart.
    machine.args(["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"]);
    machine.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    let console = emulator.console;
    // The clock of an emulated machine cannot be calibrated.
    let words = format!("console={console} quiet loglevel=3 mitigations=off tsc=reliable panic=-1");
    machine.args(["-append", &words]);
    let mut machine = machine
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}` (Debian: {})", emulator.program, emulator.package))?;
    let console = machine.stdout.take().context("QEMU has no output")?;
    let lines = std::thread::spawn(move || {
        let mut out = out;
        let shown = show(BufReader::new(console), &mut out);
        (shown, out)
    });
    let in_time = ends_within(&mut machine, Duration::from_secs(args.timeout.into()))?;
    let (shown, out) = lines.join().map_err(|_| anyhow!("showing the output failed"))?;
    let shown = shown.context("writing the output")?;
    let code = shown.code.with_context(|| {
        let place = if shown.has_begun { "under" } else { "before" };
        if in_time {
            format!("the kernel ended {place} the command; what it said is above")
        } else {
            format!("the machine was switched off {place} the command, after {} s (--timeout)", args.timeout)
        }
    })?;
    Ok((code, out))
}

/// Waits for the machine's end, and ends it after this time. Returns whether it ended by itself.
fn ends_within(machine: &mut Child, time: Duration) -> Result<bool> {
    let end = Instant::now() + time;
    while machine.try_wait().context("waiting for QEMU")?.is_none() {
        if Instant::now() > end {
            machine.kill().context("ending QEMU")?;
            machine.wait().context("waiting for QEMU")?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(true)
}

/// Progress of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shown {
    has_begun: bool,
    /// The command's exit status.
    code: Option<i32>,
}

/// Writes what the console shows between the marks of the init script, or everything if there are no marks.
fn show(console: impl BufRead, mut out: impl Write) -> io::Result<Shown> {
    let mut before = Vec::new();
    let mut shown = Shown::default();
    for line in console.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        if line.ends_with(initramfs::BEGIN) {
            shown.has_begun = true;
        } else if let Some((rest, status)) = line.split_once(initramfs::END) {
            // The command's last line need not end with a line feed.
            if !rest.is_empty() {
                writeln!(out, "{rest}")?;
            }
            shown.code = status.trim().parse().ok();
            break;
        } else if shown.has_begun {
            writeln!(out, "{line}")?;
        } else {
            before.push(line.to_owned());
        }
    }
    if !shown.has_begun {
        for line in before {
            writeln!(out, "{line}")?;
        }
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(console: &str) -> (Shown, String) {
        let mut out = Vec::new();
        let shown = show(console.as_bytes(), &mut out).unwrap();
        (shown, String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_commands_output_is_between_the_marks() {
        let console = "early\r\n[0.1] x ncclflow-vm: begin\r\none\r\ntwo\r\nncclflow-vm: end 3\r\nlate\r\n";
        assert_eq!(shows(console), (Shown { has_begun: true, code: Some(3) }, "one\ntwo\n".to_owned()));
        let unfinished = "ncclflow-vm: begin\nonencclflow-vm: end 0\n";
        assert_eq!(shows(unfinished), (Shown { has_begun: true, code: Some(0) }, "one\n".to_owned()));
    }

    #[test]
    fn a_machine_that_ends_early_says_all_that_it_can() {
        assert_eq!(shows("no root\r\nbye"), (Shown::default(), "no root\nbye\n".to_owned()));
        let died = shows("early\nncclflow-vm: begin\none\npanic");
        assert_eq!(died, (Shown { has_begun: true, code: None }, "one\npanic\n".to_owned()));
    }
}
