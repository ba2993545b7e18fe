//! The NCCL library in this process: opened with the system's loader, unchanged on disk, and with the part of
//! its `.symtab` that the bed needs (the CUDA runtime inside it, its kernels, its table of device functions).

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use object::{Object, ObjectSection as _, ObjectSymbol, ReadCache, SymbolKind};

/// A symbol of `.symtab`, at its address in this process.
#[derive(Debug, Clone)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    pub(crate) runtime_addr: usize,
    pub(crate) size: usize,
}

#[derive(Debug)]
pub(crate) struct Library {
    handle: usize,
    runtime_functions: Vec<Symbol>,
    device_symbols: Vec<Symbol>,
    kernels: HashMap<usize, String>,
}

impl Library {
    /// Opens the library, with the symbols of the file `symbols`: itself, or the same build before it was
    /// stripped. Its constructors run here, before anything of the runtime can be replaced.
    pub(crate) fn open(path: &Path, symbols: &Path) -> Result<Self> {
        let handle = dlopen(path, libc::RTLD_NOW | libc::RTLD_LOCAL)?;
        let file = File::open(symbols).with_context(|| format!("opening `{}`", symbols.display()))?;
        let cache = ReadCache::new(file);
        let elf = object::File::parse(&cache).with_context(|| format!("reading `{}`", symbols.display()))?;
        if symbols != path && !is_same_build(symbols, path)? {
            bail!("`{}` is of another build than `{}`", symbols.display(), path.display());
        }
        let mut library = Self {
            handle,
            runtime_functions: Vec::new(),
            device_symbols: Vec::new(),
            kernels: HashMap::new(),
        };
        let anchor =
            elf.dynamic_symbols().find(|symbol| symbol.name() == Ok("ncclGetVersion")).ok_or_else(|| {
                anyhow!("`{}` does not export ncclGetVersion: is it a libnccl?", path.display())
            })?;
        let base = library
            .export(c"ncclGetVersion")?
            .checked_sub(usize::try_from(anchor.address())?)
            .context("the library is mapped below its own address")?;
        for symbol in elf.symbols() {
            let Ok(name) = symbol.name() else { continue };
            if symbol.address() == 0 {
                continue;
            }
            let found = Symbol {
                name: name.to_owned(),
                runtime_addr: base.wrapping_add(usize::try_from(symbol.address())?),
                size: usize::try_from(symbol.size())?,
            };
            if is_runtime_function(name) && symbol.kind() == SymbolKind::Text {
                library.runtime_functions.push(found);
            } else if is_kernel(name) || name.contains("ncclProgressCounterCaptureGpuTime") {
                library.kernels.insert(found.runtime_addr, found.name);
            } else if name.starts_with("ncclDev") && symbol.kind() == SymbolKind::Data {
                library.device_symbols.push(found);
            }
        }
        if library.runtime_functions.is_empty() {
            bail!(
                "`{}` has no CUDA runtime symbols in .symtab: the bed needs an unstripped library with a static runtime \
                 (--symbols, if another file has them)",
                symbols.display()
            );
        }
        Ok(library)
    }

    /// The documented functions of the CUDA runtime that the library carries.
    pub(crate) fn runtime_functions(&self) -> &[Symbol] {
        &self.runtime_functions
    }

    pub(crate) fn has_runtime_function(&self, name: &str) -> bool {
        self.runtime_functions.iter().any(|symbol| symbol.name == name)
    }

    /// The kernel behind the host function that the library launches.
    pub(crate) fn kernels(&self) -> &HashMap<usize, String> {
        &self.kernels
    }

    /// A data symbol whose name starts with `ncclDev`.
    pub(crate) fn device_symbol(&self, name: &str) -> Option<&Symbol> {
        self.device_symbols.iter().find(|symbol| symbol.name == name)
    }

    /// The address of an exported function.
    pub(crate) fn export(&self, name: &CStr) -> Result<usize> {
        // SAFETY: the handle came from dlopen and is never closed.
        let address = unsafe { libc::dlsym(self.handle as *mut c_void, name.as_ptr()) };
        if address.is_null() {
            bail!("the library does not export {}", name.to_string_lossy());
        }
        Ok(address as usize)
    }
}

/// NCCL's collective kernels; up to 2.18 without `Dev` in their names.
fn is_kernel(name: &str) -> bool {
    name.contains("ncclDevKernel_") || name.contains("ncclKernel_")
}

/// By the build-ids, or, of a library that has none, by the code.
fn is_same_build(symbols: &Path, path: &Path) -> Result<bool> {
    let (build_id, of_symbols) = (build_id(path)?, self::build_id(symbols)?);
    Ok(if build_id.is_none() { code(path)? == code(symbols)? } else { build_id == of_symbols })
}

fn build_id(path: &Path) -> Result<Option<Vec<u8>>> {
    of_file(path, |elf| Ok(elf.build_id()?.map(<[u8]>::to_vec)))
}

/// The bytes of `.text`, and where they are.
fn code(path: &Path) -> Result<(u64, Vec<u8>)> {
    of_file(path, |elf| {
        let text =
            elf.section_by_name(".text").with_context(|| format!("`{}` has no code", path.display()))?;
        Ok((text.address(), text.data()?.to_vec()))
    })
}

fn of_file<T>(path: &Path, read: impl FnOnce(&object::File<'_, &ReadCache<File>>) -> Result<T>) -> Result<T> {
    let cache = ReadCache::new(File::open(path).with_context(|| format!("opening `{}`", path.display()))?);
    read(&object::File::parse(&cache).with_context(|| format!("reading `{}`", path.display()))?)
}

/// Documented CUDA names begin with `cuda` and a capital letter; others are the runtime's private code.
fn is_runtime_function(name: &str) -> bool {
    name.strip_prefix("cuda").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Opens a library so that a later `dlopen` by its SONAME finds it.
pub(crate) fn preload(path: &Path) -> Result<()> {
    dlopen(path, libc::RTLD_NOW | libc::RTLD_GLOBAL).map(drop)
}

/// Opens a library, and returns the address of a function that it exports.
pub(crate) fn exported(path: &Path, name: &CStr) -> Result<usize> {
    let handle = dlopen(path, libc::RTLD_NOW | libc::RTLD_LOCAL)?;
    // SAFETY: the handle came from dlopen and is never closed.
    let address = unsafe { libc::dlsym(handle as *mut c_void, name.as_ptr()) };
    if address.is_null() {
        bail!("`{}` does not export {}", path.display(), name.to_string_lossy());
    }
    Ok(address as usize)
}

/// Opens a library that is there, and is not used.
pub(crate) fn load(path: &Path) -> Result<()> {
    dlopen(path, libc::RTLD_NOW | libc::RTLD_LOCAL).map(drop)
}

fn dlopen(path: &Path, flags: i32) -> Result<usize> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).context("the path has a NUL byte")?;
    // SAFETY: a C string; what the library's constructors do is what the caller asks for.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if handle.is_null() {
        // SAFETY: dlerror returns null or a C string that stays valid until the next call on this thread.
        let message: *const c_char = unsafe { libc::dlerror() };
        let message = if message.is_null() {
            "no reason given".into()
        } else {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(message) }.to_string_lossy()
        };
        bail!("cannot open `{}`: {message}", path.display());
    }
    Ok(handle as usize)
}
