//! The Debian package.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{
    places::{self, DOCUMENTATION, MAN, Names},
    staging::source_time,
};
use crate::tool;

const NAMES: Names = Names { zsh: "usr/share/zsh/vendor-completions", licence: "copyright" };

const AFTER_INSTALL: &str = "\
#!/bin/sh
set -e
if [ -z \"$DPKG_ROOT\" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
";

/// Script that stops the unit before its program is removed. At an upgrade the unit goes on with the old
/// program until its operator restarts it. The package never starts it: whether every job of a host is traced
/// is the operator's decision.
const BEFORE_REMOVAL: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -z \"$DPKG_ROOT\" ] && [ -d /run/systemd/system ]; then
    systemctl disable --now ncclflow-watch.service ncclflow-record.service || true
fi
";

/// Script that keeps the recordings even if everything else is purged: they belong to the operator.
const AFTER_REMOVAL: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = purge ]; then
    rm -rf \"$DPKG_ROOT/var/cache/ncclflow\"
    if [ -d \"$DPKG_ROOT/var/lib/ncclflow\" ]; then rmdir --ignore-fail-on-non-empty \"$DPKG_ROOT/var/lib/ncclflow\"; fi
fi
if [ -z \"$DPKG_ROOT\" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
";

/// Makes the package from the tree.
pub(super) fn pack(root: &Path, tree: &Path, version: &str, target: &str, output: &Path) -> Result<PathBuf> {
    let architecture = match target.split('-').next() {
        Some("x86_64") => "amd64",
        Some("aarch64") => "arm64",
        _ => bail!("no name of Debian's for `{target}`: use --no-packages"),
    };
    places::fill(tree, root, NAMES)?;
    let changelog = root.join(DOCUMENTATION).join("changelog");
    fs::write(&changelog, debian_changelog(version)?)
        .with_context(|| format!("writing `{}`", changelog.display()))?;
    let mut gzip = Command::new("gzip");
    gzip.args(["-9n", "--recursive"]).arg(root.join(MAN)).arg(changelog);
    tool::run(&mut gzip, "the man pages")?;

    let write = |name: &str, text: &str, mode: u32| {
        let path = root.join("DEBIAN").join(name);
        fs::create_dir_all(root.join("DEBIAN"))
            .and_then(|()| fs::write(&path, text))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .with_context(|| format!("writing `{}`", path.display()))
    };
    write("control", &control(version, architecture), 0o644)?;
    write("conffiles", "/etc/default/ncclflow\n/etc/default/ncclflow-watch\n", 0o644)?;
    write("postinst", AFTER_INSTALL, 0o755)?;
    write("prerm", BEFORE_REMOVAL, 0o755)?;
    write("postrm", AFTER_REMOVAL, 0o755)?;
    let package = output.join(format!("ncclflow_{version}_{architecture}.deb"));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--root-owner-group", "-Zxz", "--build"]).arg(root).arg(&package);
    tool::run(dpkg.env("SOURCE_DATE_EPOCH", source_time()?), "the package (--no-packages goes without)")?;
    Ok(package)
}

const MAINTAINER: &str = "The ncclflow authors <ncclflow@users.noreply.github.com>";

/// Writes a changelog in Debian's own format, which dpkg's tools read; CHANGELOG.md has the changes.
fn debian_changelog(version: &str) -> Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", "--date", &format!("@{}", source_time()?)]);
    let output = tool::output(date.env("LC_ALL", "C"))?;
    let date = String::from_utf8_lossy(&output).trim().to_owned();
    Ok(format!(
        "ncclflow ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- {MAINTAINER}  {date}\n"
    ))
}

fn control(version: &str, architecture: &str) -> String {
    format!(
        "\
Package: ncclflow
Version: {version}
Architecture: {architecture}
Maintainer: {MAINTAINER}
Depends: libc6 (>= 2.28)
Section: utils
Priority: optional
Homepage: https://github.com/ncclflow/ncclflow
Description: see what NCCL decides and sends in jobs that are already running
 ncclflow attaches to running NCCL jobs with eBPF uprobes and records, per rank,
 what NCCL decided and did: algorithms, protocols, peers, messages, waits. It
 dumps jobs that hang, shows them live, and serves metrics for Prometheus. Jobs
 need no restart, no plugin and no environment variable.
"
    )
}
