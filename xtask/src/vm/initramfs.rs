//! The machine's initramfs: busybox, modules, and a script that puts an overlay over this machine's files and
//! runs the command there.

use std::{
    env,
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{kernel::Kernel, system::System};
use crate::tool;

/// Marks that the script prints before the command's output and, with the exit status, after it.
pub(super) const BEGIN: &str = "ncclflow-vm: begin";
pub(super) const END: &str = "ncclflow-vm: end ";

/// Name of the command's script, in the root of the overlay.
const COMMAND: &str = "ncclflow-vm-command";

/// Makes the initramfs. `memory`: MiB of the machine. A quarter of it is for files that are written.
pub(super) fn make(
    system: &System,
    kernel: &Kernel,
    command: &[String],
    memory: u32,
    folder: &Path,
) -> Result<PathBuf> {
    let tree = folder.join("initramfs");
    for name in ["bin", "modules", "proc", "dev", "below", "above", "root"] {
        fs::create_dir_all(tree.join(name)).context("making the machine's first files")?;
    }
    let busybox = system.root.join("bin/busybox");
    fs::copy(&busybox, tree.join("bin/busybox"))
        .with_context(|| format!("copying `{}` (Debian: busybox-static)", busybox.display()))?;
    let mut modules = Vec::new();
    for module in &kernel.modules {
        modules.push(add_module(module, &tree.join("modules"))?);
    }
    write_program(&tree.join("init"), &init(system, &modules, memory / 4)?)?;
    write_program(&tree.join(COMMAND), &command_script(system, command)?)?;
    let archive = folder.join("initramfs.cpio");
    let pack = "cd \"$1\" && find . | cpio --quiet --create --format newc > \"$2\"";
    tool::run(
        Command::new("sh").args(["-c", pack, "sh"]).args([&tree, &archive]),
        "the first files (Debian: cpio)",
    )?;
    Ok(archive)
}

/// Puts a module into the folder, uncompressed, as busybox needs it. Returns its file name.
fn add_module(module: &Path, folder: &Path) -> Result<String> {
    let name = module.file_name().and_then(|name| name.to_str()).context("a module has an odd name")?;
    let to = folder.join(name);
    fs::copy(module, &to).with_context(|| format!("copying `{}`", module.display()))?;
    let Some((plain, kind)) = name.rsplit_once('.').filter(|(_, kind)| *kind != "ko") else {
        return Ok(name.to_owned());
    };
    let decompressor = match kind {
        "zst" => "zstd",
        "xz" => "xz",
        _ => bail!("`{name}` is compressed in a way that is not known here"),
    };
    tool::run(Command::new(decompressor).args(["--decompress", "--quiet"]).arg(&to), "a module")?;
    Ok(plain.to_owned())
}

/// Returns the init script. `room`: MiB for files that are written.
fn init(system: &System, modules: &[String], room: u32) -> Result<String> {
    let modules = modules.join(" ");
    let word = |path: &Path| -> Result<String> {
        let path = path.to_str().with_context(|| format!("`{}` has an odd name", path.display()))?;
        Ok(quoted(path.trim_end_matches('/')))
    };
    let files = word(&system.root)?;
    let mut shared = String::new();
    for folder in &system.shared {
        let folder = word(folder)?;
        writeln!(shared, "mkdir -p /root{folder}; mount --bind /below{folder} /root{folder}")?;
    }
    Ok(format!(
        "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t devtmpfs none /dev
for module in {modules}; do insmod /modules/$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=1048576,ro root /below || poweroff -f
mount -t tmpfs -o size={room}m none /above
mkdir /above/files /above/work
mount -t overlay -o lowerdir=/below{files},upperdir=/above/files,workdir=/above/work none /root || poweroff -f
{shared}mount -t proc none /root/proc
mount -t sysfs none /root/sys
mount -t tracefs none /root/sys/kernel/tracing
mount -t devtmpfs none /root/dev
mkdir -p /root/dev/shm /root/dev/pts
mount -t tmpfs none /root/dev/shm
mount -t devpts none /root/dev/pts
ip link set lo up
cp /{COMMAND} /root
echo '{BEGIN}'
chroot /root /{COMMAND} < /dev/null
echo \"{END}$?\"
poweroff -f
"
    ))
}

/// Returns a script that runs the command in this directory, with the parts of the environment that it is
/// likely to need.
fn command_script(system: &System, command: &[String]) -> Result<String> {
    let mut script = String::from("#!/bin/sh\n");
    for (name, value) in env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        if name == "PATH" || name == "HOME" || name.starts_with("NCCLFLOW_") {
            let value = value.to_str().with_context(|| format!("`{name}` is no UTF-8"))?;
            writeln!(script, "export {name}={}", quoted(value))?;
        }
    }
    if let Some(programs) = &system.programs {
        let programs = programs.to_str().context("the target folder has an odd name")?;
        writeln!(script, "export PATH={}:\"$PATH\"", quoted(programs))?;
    }
    let here = env::current_dir().context("asking for the current directory")?;
    let here = here.to_str().context("the current directory has an odd name")?;
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    writeln!(script, "cd {} && exec {} 2>&1", quoted(here), words.join(" "))?;
    Ok(script)
}

/// Quotes text as one word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    let written =
        fs::write(path, text).and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)));
    written.with_context(|| format!("writing `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_word_stays_one() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
