//! The RPM package, for the distributions of Red Hat, SUSE and their kin.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{
    places::{self, MAN, Names},
    staging::source_time,
};
use crate::{prerequisites, tool};

const NAMES: Names = Names { zsh: "usr/share/zsh/site-functions", licence: "LICENSE-MIT" };

/// Makes the package from the tree, for either processor on either.
pub(super) fn pack(root: &Path, tree: &Path, version: &str, target: &str, output: &Path) -> Result<PathBuf> {
    let Some(architecture @ ("x86_64" | "aarch64")) = target.split('-').next() else {
        bail!("no name of RPM's for `{target}`");
    };
    prerequisites::debian_packages(&[(&["rpmbuild", "--version"], "rpm")])?;
    let files = root.join("files");
    places::fill(tree, &files, NAMES)?;
    tool::run(Command::new("gzip").args(["-9n", "--recursive"]).arg(files.join(MAN)), "the man pages")?;

    // A hyphen would end the version.
    let version = version.replace('-', "~");
    let path = root.join("ncclflow.spec");
    fs::write(&path, spec(&version)).with_context(|| format!("writing `{}`", path.display()))?;
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet", "--target", &format!("{architecture}-linux")]);
    for (name, value) in
        [("_topdir", root.join("build")), ("_rpmdir", output.to_owned()), ("staged", files.clone())]
    {
        rpmbuild.arg("--define").arg(format!("{name} {}", value.display()));
    }
    rpmbuild.arg("--define").arg("_build_name_fmt %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm");
    tool::run(rpmbuild.arg(path).env("SOURCE_DATE_EPOCH", source_time()?), "the RPM package")?;
    Ok(output.join(format!("ncclflow-{version}-1.{architecture}.rpm")))
}

/// Returns the spec file. The package never starts the unit, stops it before its program is removed, and lets
/// it go on with the old program at an upgrade, as the Debian package does. Recordings stay: they belong to
/// the operator.
fn spec(version: &str) -> String {
    format!(
        "\
# Nothing is built or changed here: no debugging information, nothing stripped, no build scripts.
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
# The same files give the same package.
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global _buildhost localhost
# What the oldest rpm that it is for can read.
%global _binary_payload w9.xzdio

Name: ncclflow
Version: {version}
Release: 1
Summary: See what NCCL decides and sends in jobs that are already running
License: (MIT OR Apache-2.0) AND (MIT OR GPL-2.0-only)
URL: https://github.com/ncclflow/ncclflow
AutoReqProv: no
Requires: glibc >= 2.28

%description
ncclflow attaches to running NCCL jobs with eBPF uprobes and records, per rank,
what NCCL decided and did: algorithms, protocols, peers, messages, waits. It
dumps jobs that hang, shows them live, and serves metrics for Prometheus. Jobs
need no restart, no plugin and no environment variable.

%install
cp -a %{{staged}}/. %{{buildroot}}/

%files
%defattr(-,root,root,-)
%config(noreplace) /etc/default/ncclflow
%config(noreplace) /etc/default/ncclflow-watch
/usr/bin/ncclflow
/usr/lib/systemd/system/ncclflow-record.service
/usr/lib/systemd/system/ncclflow-watch.service
/usr/share/bash-completion/completions/ncclflow
/usr/share/doc/ncclflow
/usr/share/fish/vendor_completions.d/ncclflow.fish
/usr/share/man/man1/ncclflow*
/usr/share/zsh/site-functions/_ncclflow

%post
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi

%preun
if [ $1 -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now ncclflow-watch.service ncclflow-record.service || :
fi

%postun
if [ $1 -eq 0 ]; then
    rm -rf /var/cache/ncclflow
    if [ -d /var/lib/ncclflow ]; then rmdir --ignore-fail-on-non-empty /var/lib/ncclflow; fi
fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
"
    )
}
