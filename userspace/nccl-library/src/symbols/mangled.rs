//! Symbols, taken apart to tell which function each is a copy of.
//!
//! Only the forms of NCCL's own functions are understood: a C name, or the Itanium C++ encoding of a free
//! function, `_Z [L] <length> <name> <parameter types>`, perhaps inside the unnamed namespace; and after
//! either, the suffixes that compilers give to their copies. The length in the encoding makes the match
//! exact: `_Z16ncclProxySaveOpXv` is not a copy of `ncclProxySaveOp`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbol<'a> {
    /// The unqualified name.
    pub(super) name: &'a str,
    /// The symbol without clone suffixes.
    pub(super) base: &'a str,
    /// True for a clone whose parameters may not be those declared.
    pub(super) is_clone: bool,
    /// True if the function is local to its source file, so that the compiler sees all its callers. C names
    /// do not tell.
    pub(super) is_static: bool,
}

/// Takes a symbol apart; `None` for the out-of-line cold part of a function (it is not an entry) and for a
/// symbol that is not of a free function.
pub(super) fn parse(symbol: &str) -> Option<Symbol<'_>> {
    let (base, suffixes) = symbol.split_once('.').map_or((symbol, None), |(base, rest)| (base, Some(rest)));
    let is_clone = match suffixes {
        Some(suffixes) => changes_parameters(suffixes)?,
        None => false,
    };
    let name = match base.strip_prefix("_Z") {
        Some(encoding) => free_function(encoding)?,
        None => base,
    };
    let is_static = base.starts_with("_ZL") || base.starts_with("_ZN12_GLOBAL__N_1");
    (!name.is_empty()).then_some(Symbol { name, base, is_clone, is_static })
}

/// Tells whether the copy with these suffixes may have other parameters than declared; `None` if it is no
/// copy of a function.
fn changes_parameters(suffixes: &str) -> Option<bool> {
    let mut changed = false;
    let mut parts = suffixes.split('.').peekable();
    while let Some(kind) = parts.next() {
        match kind {
            "isra" | "constprop" | "part" => changed = true,
            // Renamed by link-time optimisation; the function is the same.
            "lto_priv" | "llvm" => {}
            _ => return None,
        }
        while parts
            .next_if(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
            .is_some()
        {}
    }
    Some(changed)
}

fn free_function(encoding: &str) -> Option<&str> {
    // Internal linkage is marked with `L`; a member of the unnamed namespace is nested: `N12_GLOBAL__N_1…E`.
    let unnamed = encoding.strip_prefix("N12_GLOBAL__N_1");
    let (name, rest) = source_name(unnamed.or_else(|| encoding.strip_prefix('L')).unwrap_or(encoding))?;
    let types = if unnamed.is_some() { rest.strip_prefix('E')? } else { rest };
    // A function's encoding states at least one parameter type (`v` for none). `I` would begin template
    // arguments and `B` an ABI tag, which make it another function.
    let first = types.bytes().next()?;
    (!matches!(first, b'I' | b'B' | b'E')).then_some(name)
}

fn source_name(encoding: &str) -> Option<(&str, &str)> {
    let digits = encoding.bytes().take(5).take_while(u8::is_ascii_digit).count();
    let length: usize = encoding.get(..digits)?.parse().ok()?;
    let end = digits.checked_add(length)?;
    Some((encoding.get(digits..end)?, encoding.get(end..)?))
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn name(symbol: &str) -> Option<(&str, bool)> {
        parse(symbol).map(|symbol| (symbol.name, symbol.is_clone))
    }

    #[test]
    fn copies_of_a_function() {
        for (symbol, is_clone) in [
            ("_ZL9SaveProxyP8ncclCommP11ncclChanneliiP11ncclProxyOpiPb.isra.10", true),
            ("_ZL9SaveProxyP8ncclComm", false),
            ("_Z9SaveProxyv", false),
            ("_ZN12_GLOBAL__N_19SaveProxyEP8ncclComm", false),
            ("_ZL9SaveProxyP8ncclComm.part.4.constprop.68", true),
            ("_ZL9SaveProxyP8ncclComm.lto_priv.0", false),
            ("_ZL9SaveProxyP8ncclComm.llvm.1234567", false),
            ("SaveProxy", false),
            ("SaveProxy.constprop.0", true),
        ] {
            assert_eq!(name(symbol), Some(("SaveProxy", is_clone)), "{symbol}");
        }
        let parsed = parse("_ZL9SaveProxyi.isra.10").unwrap();
        assert_eq!(parsed.base, "_ZL9SaveProxyi");
        assert!(parsed.is_static && !parse("_Z9SaveProxyi").unwrap().is_static);
    }

    #[test]
    fn what_is_no_copy_of_it() {
        assert_eq!(name("_Z16ncclProxySaveOpXP8ncclComm"), Some(("ncclProxySaveOpX", false)));
        for symbol in [
            "_ZL9SaveProxyP8ncclComm.isra.10.cold",
            "_ZL9SaveProxyP8ncclComm.cold.4",
            "SaveProxy.cold",
            "_ZZL9SaveProxyP8ncclCommE8__func__",
            "_ZN3Foo9SaveProxyEv",
            "_Z9SaveProxyIiEvT_",
            "_Z9SaveProxyB5cxx11v",
            "_ZL9SaveProxy",
            "_Z99SaveProxyv",
            "_Z99999999999999999999999SaveProxyv",
            "_Z",
            "_ZL",
            "",
            ".isra.1",
            "_Z9SaveProxé",
        ] {
            assert_eq!(name(symbol), None, "{symbol}");
        }
    }
}
