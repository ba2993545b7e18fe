//! Symbol tables: the functions and objects of `.symtab`, or of `.dynsym` in a stripped library.

use object::LittleEndian as Little;
use object::elf;
use object::pod;
use object::read::elf::Sym as _;

use super::{Budget, ElfVaddr, Error, ErrorKind, Image};

/// Most bytes of symbols, and of names. The largest official library has 0.6 MB of symbols and 0.7 MB of
/// names; frameworks with NCCL inside have more.
const MAX_TABLE: u64 = 128 << 20;
/// Longest symbol name that is looked at; those of NCCL's own functions have some hundred bytes. The limit
/// also bounds the search for the end of a name, which a hostile table could otherwise make quadratic.
const MAX_NAME: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// `.symtab`: local functions too.
    Full,
    /// `.dynsym`: exported functions only.
    Exported,
}

/// A function or a variable.
#[derive(Clone, Copy, Debug)]
pub struct Symbol<'a> {
    /// Name as it stands in the string table: mangled, with clone suffixes.
    pub name: &'a str,
    pub address: ElfVaddr,
    /// Bytes; 0 if the file does not say.
    pub size: u64,
}

#[derive(Debug)]
pub struct SymbolTable {
    kind: TableKind,
    symbols: Box<[u8]>,
    names: Box<[u8]>,
}

impl SymbolTable {
    /// Reads the best table of the library; `None` when it has none.
    pub fn read(image: &Image, budget: &mut Budget) -> Result<Option<Self>, Error> {
        match Self::of_kind(image, TableKind::Full, budget)? {
            Some(full) => Ok(Some(full)),
            None => Self::read_exported(image, budget),
        }
    }

    /// Reads `.dynsym`, also where there is a `.symtab`; `None` when the file exports nothing.
    pub fn read_exported(image: &Image, budget: &mut Budget) -> Result<Option<Self>, Error> {
        Self::of_kind(image, TableKind::Exported, budget)
    }

    fn of_kind(image: &Image, kind: TableKind, budget: &mut Budget) -> Result<Option<Self>, Error> {
        let wanted = match kind {
            TableKind::Full => elf::SHT_SYMTAB,
            TableKind::Exported => elf::SHT_DYNSYM,
        };
        let section = image.sections().iter().find(|section| section.kind == wanted && section.size > 0);
        let Some(section) = section else { return Ok(None) };
        let names = usize::try_from(section.link)
            .ok()
            .and_then(|link| image.sections().get(link))
            .ok_or_else(|| {
                let what = "does not say which section holds its names";
                Error::new(ErrorKind::Malformed, image.place(&section.name), what)
            })?;
        let symbols = image.section_data(section, MAX_TABLE, budget)?;
        let names = image.section_data(names, MAX_TABLE, budget)?;
        Ok(Some(Self { kind, symbols, names }))
    }

    pub fn kind(&self) -> TableKind {
        self.kind
    }

    /// Returns the functions with an address in this file, in the table's order.
    pub fn functions(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.defined(&[elf::STT_FUNC, elf::STT_GNU_IFUNC])
    }

    /// Returns the variables with an address in this file, in the table's order.
    pub fn objects(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.defined(&[elf::STT_OBJECT])
    }

    fn defined(&self, kinds: &'static [u8]) -> impl Iterator<Item = Symbol<'_>> {
        let whole = self.symbols.len() - self.symbols.len() % size_of::<elf::Sym64<Little>>();
        let symbols =
            pod::slice_from_all_bytes::<elf::Sym64<Little>>(&self.symbols[..whole]).unwrap_or_default();
        symbols.iter().filter_map(move |symbol| {
            let is_here = symbol.st_shndx(Little) != elf::SHN_UNDEF && symbol.st_value(Little) != 0;
            if !is_here || !kinds.contains(&symbol.st_type()) {
                return None;
            }
            let name = self.name(symbol.st_name(Little))?;
            Some(Symbol { name, address: ElfVaddr(symbol.st_value(Little)), size: symbol.st_size(Little) })
        })
    }

    fn name(&self, offset: u32) -> Option<&str> {
        let rest = self.names.get(usize::try_from(offset).ok()?..)?;
        let rest = &rest[..rest.len().min(MAX_NAME + 1)];
        let name = std::str::from_utf8(&rest[..memchr::memchr(0, rest)?]).ok()?;
        // No compiler writes a control character; a hostile file might, for the terminal that shows it.
        (!name.chars().any(char::is_control)).then_some(name)
    }
}
