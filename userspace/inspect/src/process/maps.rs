//! `/proc/PID/maps`, and the mapped files that are named like NCCL.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
};

use nccl_library::elf::{FileOffset, RuntimeAddr};
use serde::{Deserialize, Serialize};

use crate::proc_text::unescape;

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    pub start: RuntimeAddr,
    pub end: RuntimeAddr,
    /// Permissions, such as `r-xp`; the last is `s` for memory that is shared.
    pub permissions: [u8; 4],
    pub file_offset: FileOffset,
    /// Device as the kernel prints it, major and minor.
    pub device: (u32, u32),
    /// Inode; 0 for memory that no file backs.
    pub inode: u64,
    /// Path as the process names it, in its own mount namespace; without the mark ` (deleted)`.
    #[serde(with = "super::raw_path")]
    pub path: PathBuf,
    pub deleted: bool,
}

impl Mapping {
    /// Tells whether the file's name says that it is NCCL: `libnccl.so`, `libnccl.so.2`, `libnccl-custom.so`
    /// …, and neither one of NCCL's plugins (`libnccl-net.so`, `libnccl-tuner.so`, `libnccl-profiler.so`) nor
    /// a longer word (`libncclfoo.so`).
    pub fn is_nccl(&self) -> bool {
        const PLUGINS: [&[u8]; 5] = [b"-net", b"-tuner", b"-profiler", b"-env", b"_device"];
        let Some(name) = self.path.file_name() else { return false };
        let Some(rest) = name.as_bytes().strip_prefix(b"libnccl") else { return false };
        self.inode != 0
            && rest.first().is_none_or(|next| !next.is_ascii_alphanumeric())
            && !PLUGINS.iter().any(|plugin| rest.starts_with(plugin))
    }

    pub fn is_executable(&self) -> bool {
        self.permissions.contains(&b'x')
    }

    /// Tells whether the mapping is code that is in a file.
    pub fn is_file_code(&self) -> bool {
        self.is_executable() && self.inode != 0
    }

    /// Returns the name of the range in `/proc/PID/map_files`.
    pub fn range_name(&self) -> String {
        format!("{:x}-{:x}", self.start.0, self.end.0)
    }
}

/// Parses the text of `/proc/PID/maps`. Lines that do not parse are left out: the kernel prints none, and a
/// process can put nothing there but a file name, in which the kernel escapes newlines.
pub fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

/// Reads and parses `/proc/self/maps`. Those of other processes are read by a child, see `resolver`.
pub fn read_own() -> io::Result<Vec<Mapping>> {
    let mut text = Vec::new();
    File::open("/proc/self/maps")?.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(parse(&text))
}

/// Most lines that are read: twice the kernel's default limit of mappings (`vm.max_map_count`).
const MAX_LINES: usize = 131_072;
/// Most bytes that are read, of lines of about 100 bytes. A tenant can make lines of 4,000.
const MAX_BYTES: u64 = 16 << 20;
/// Most mappings of code that are kept: programs have some hundreds.
const MAX_CODE: usize = 4096;

/// The mappings of a process that are code in files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileCode {
    pub mappings: Vec<Mapping>,
    /// Set if there were more, of code or of all, than are read.
    pub is_cut: bool,
    /// Set if there was none of any kind: the process is exiting, or a thread of the kernel.
    pub is_empty: bool,
}

/// Reads `/proc/PID/maps` line by line and keeps code in files. Code of files that are named like NCCL is
/// kept first: a process with too much code hides none of it.
pub fn read_file_code(pid: u32) -> io::Result<FileCode> {
    file_code(BufReader::new(File::open(format!("/proc/{pid}/maps"))?))
}

fn file_code(reader: impl BufRead) -> io::Result<FileCode> {
    let mut reader = reader.take(MAX_BYTES);
    let (mut code, mut line, mut lines) = (FileCode { is_empty: true, ..FileCode::default() }, Vec::new(), 0);
    let mut of_nccl = 0;
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            code.is_cut |= reader.limit() == 0;
            return Ok(code);
        }
        lines += 1;
        if lines > MAX_LINES {
            code.is_cut = true;
            return Ok(code);
        }
        code.is_empty = false;
        let Some(mapping) =
            parse_line(line.strip_suffix(b"\n").unwrap_or(&line)).filter(Mapping::is_file_code)
        else {
            continue;
        };
        if code.mappings.len() < MAX_CODE {
            of_nccl += usize::from(mapping.is_nccl());
            code.mappings.push(mapping);
            continue;
        }
        code.is_cut = true;
        if mapping.is_nccl() && of_nccl < MAX_CODE {
            let other = code.mappings.iter().rposition(|kept| !kept.is_nccl());
            if let Some(other) = other.and_then(|at| code.mappings.get_mut(at)) {
                of_nccl += 1;
                *other = mapping;
            }
        }
    }
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    // start-end perms offset major:minor inode      path
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|&byte| byte != b' ')?;
        let end = rest.get(start..)?.iter().position(|&byte| byte == b' ').map_or(rest.len(), |n| start + n);
        let (field, tail) = (rest.get(start..end)?, rest.get(end..)?);
        rest = tail;
        std::str::from_utf8(field).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?;
    let file_offset = field()?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let hex32 = |text: &str| u32::from_str_radix(text, 16).ok();
    let path = rest.iter().position(|&byte| byte != b' ').and_then(|at| rest.get(at..)).unwrap_or_default();
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    // Of a name the kernel escapes newlines alone.
    let path = unescape(path, |byte| byte == b'\n');
    Some(Mapping {
        start: RuntimeAddr(hex(start)?),
        end: RuntimeAddr(hex(end)?),
        permissions: permissions.as_bytes().try_into().ok()?,
        file_offset: FileOffset(hex(file_offset)?),
        device: (hex32(major)?, hex32(minor)?),
        inode: inode.parse().ok()?,
        path: PathBuf::from(OsString::from_vec(path)),
        deleted,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    // As printed by the kernel: fs/proc/task_mmu.c, show_map_vma.
    const MAPS: &str = "\
7f3a00000000-7f3a00100000 r-xp 00043000 fd:01 1234                       /opt/a b/libnccl.so.2
7f3a00200000-7f3a00300000 r-xp 00000000 fd:01 99                         /opt/libnccl.so.2 (deleted)
7f3a00400000-7f3a00500000 r-xp 00000000 fd:01 98                         /opt/libnccl-net.so
7f3a00500000-7f3a00600000 r-xp 00000000 fd:01 97                         /opt/libncclfoo.so
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
7f3a00600000-7f3a00700000 rw-p 00000000 00:00 0
";

    #[test]
    fn paths_with_blanks_deleted_files_and_anonymous_memory_are_read() {
        let maps = parse(MAPS.as_bytes());
        assert_eq!(maps.len(), 6);
        assert_eq!(maps[0].path, Path::new("/opt/a b/libnccl.so.2"));
        assert_eq!((maps[0].file_offset.0, maps[0].device, maps[0].inode), (0x43000, (0xfd, 1), 1234));
        assert!(maps[0].is_file_code() && maps[0].is_nccl() && !maps[0].deleted);
        assert!(maps[1].deleted && maps[1].is_nccl());
        assert_eq!(maps[1].path, Path::new("/opt/libnccl.so.2"));
        assert!(!maps[2].is_nccl(), "a plugin is not NCCL");
        assert!(maps[3..].iter().all(|mapping| !mapping.is_nccl()));
        assert_eq!(maps[0].range_name(), "7f3a00000000-7f3a00100000");
    }

    #[test]
    fn only_code_in_files_is_kept_and_no_more_than_is_kept_of_any_process() {
        let code = file_code(MAPS.as_bytes()).unwrap();
        assert_eq!(code.mappings, parse(MAPS.as_bytes())[..4]);
        assert!(!code.is_cut && !code.is_empty);
        assert!(file_code(&b""[..]).unwrap().is_empty);
        let line =
            |at: usize, name: &str| format!("{at:x}-{:x} r-xp 00000000 fd:01 {at}    {name}\n", at + 1);
        let many: String = (1..10_000).map(|at| line(at, "/tmp/some.so")).collect();
        let hidden = many + &line(20_000, "/opt/libnccl.so.2") + &line(20_001, "/opt/libnccl.so.3");
        let code = file_code(hidden.as_bytes()).unwrap();
        assert!(code.is_cut);
        assert_eq!(code.mappings.len(), MAX_CODE);
        let nccl: Vec<u64> =
            code.mappings.iter().filter(|kept| kept.is_nccl()).map(|kept| kept.inode).collect();
        assert_eq!(nccl.len(), 2, "what is named like NCCL cannot be hidden behind the rest");
    }

    #[test]
    fn long_lines_and_many_lines_take_no_more_than_the_limits() {
        let long = format!("1000-2000 r--p 00000000 fd:01 7    /{}\n", "x".repeat(4000));
        let text = long.repeat(70_000);
        let code = file_code(text.as_bytes()).unwrap();
        assert!(code.is_cut && code.mappings.is_empty(), "280 MB, of which 16 are read");
        let short = "1000-2000 rw-p 00000000 00:00 0\n".repeat(MAX_LINES + 10);
        assert!(file_code(short.as_bytes()).unwrap().is_cut);
    }

    #[test]
    fn lines_that_are_no_maps_lines_yield_nothing() {
        assert!(parse(b"\nfoo\n1-2\nzz-yy r-xp 0 0:0 0\n").is_empty());
    }
}
