//! Layouts of the library's structs, and names of the values of its enumerations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Structs and enumerations of one library, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layouts {
    /// Structs by name. A struct without a name is called after the member that it is: `ncclProxyOp.task`.
    pub structs: BTreeMap<String, Struct>,
    pub enums: BTreeMap<String, Enumeration>,
}

/// A struct, class or union.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Struct {
    /// Bytes.
    pub size: u64,
    /// Members in the order of declaration. Those of bases and of anonymous structs and unions stand among
    /// the others, with offsets from the beginning of this struct.
    pub members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Declared name.
    pub name: String,
    #[serde(flatten)]
    pub field: Field,
    /// Key in [`Layouts`] of the struct that the member, or each element of it, is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<String>,
}

/// A place in a struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Bytes from the beginning of the struct that was asked about.
    pub offset: u64,
    /// Bytes: of the whole array if it is one, of the storage unit if it is a bit field.
    pub size: u64,
    /// Declared type without `const` and the like.
    pub type_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<Array>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<Bits>,
}

/// Elements of an array. An array of several dimensions is counted as one of its innermost elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    /// Number of elements; 0 for an array whose length is not stated.
    pub count: u64,
    pub elem_size: u64,
    /// Declared dimensions, outermost first; their product is [`Self::count`].
    pub dims: Vec<u64>,
}

/// Bits of a bit field within the little-endian integer at [`Field::offset`] of [`Field::size`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bits {
    /// Bits to shift right.
    pub shift: u32,
    /// Bits to keep.
    pub width: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enumeration {
    /// Bytes of a value.
    pub size: u64,
    /// Names and values in the order of declaration. Two names may have one value.
    pub values: Vec<(String, i64)>,
}

impl Field {
    /// Returns one element of an array.
    pub(crate) fn element(mut self, index: u64) -> Option<Self> {
        let array = self.array.take().filter(|array| index < array.count)?;
        self.offset = self.offset.checked_add(index.checked_mul(array.elem_size)?)?;
        self.size = array.elem_size;
        Some(self)
    }
}

impl Layouts {
    pub fn struct_size(&self, name: &str) -> Option<u64> {
        self.structs.get(name).map(|layout| layout.size)
    }

    /// Finds a field by its path from a struct: `ring.prev`, `config.commName`, `channels[2].id`.
    ///
    /// Dots lead into structs and unions that are held by value; pointers are not followed. An array without
    /// an index means the whole array, or its first element where the path goes on. An index counts the
    /// innermost elements. The few names that have a dot themselves (`_vptr.RingAlgorithm`) can stand at the
    /// end of a path.
    pub fn field(&self, strukt: &str, path: &str) -> Option<Field> {
        let mut layout = self.structs.get(strukt)?;
        let mut base = 0u64;
        let mut rest = Some(path);
        loop {
            let path = rest?;
            let named = |name: &str| layout.members.iter().find(|member| member.name == name);
            let (member, index) = if let Some(member) = named(path) {
                rest = None;
                (member, None)
            } else {
                let (step, further) =
                    path.split_once('.').map_or((path, None), |(step, further)| (step, Some(further)));
                rest = further;
                let (name, index) = split_index(step)?;
                (named(name)?, index)
            };
            let mut field = member.field.clone();
            field.offset = base.checked_add(field.offset)?;
            if let Some(index) = index {
                field = field.element(index)?;
            }
            if rest.is_none() {
                return Some(field);
            }
            base = field.offset;
            layout = self.structs.get(member.inner.as_ref()?)?;
        }
    }

    pub fn enum_value(&self, name: &str, enumerator: &str) -> Option<i64> {
        let values = &self.enums.get(name)?.values;
        values.iter().find(|(known, _)| known == enumerator).map(|(_, value)| *value)
    }

    /// Keeps these structs and enumerations, and the structs that these contain by value.
    #[must_use]
    pub fn restricted_to(mut self, structs: &[String], enums: &[String]) -> Self {
        let mut kept = BTreeMap::new();
        let mut wanted: Vec<String> = structs.to_vec();
        while let Some(name) = wanted.pop() {
            if let Some(layout) = self.structs.remove(&name) {
                wanted.extend(layout.members.iter().filter_map(|member| member.inner.clone()));
                kept.insert(name, layout);
            }
        }
        self.enums.retain(|name, _| enums.contains(name));
        Self { structs: kept, enums: self.enums }
    }
}

fn split_index(step: &str) -> Option<(&str, Option<u64>)> {
    match step.split_once('[') {
        None => Some((step, None)),
        Some((name, rest)) => Some((name, Some(rest.strip_suffix(']')?.parse().ok()?))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Array, Field, Layouts, Member, Struct};

    fn member(name: &str, offset: u64, size: u64, inner: Option<&str>, array: Option<(u64, u64)>) -> Member {
        let array = array.map(|(count, elem_size)| Array { count, elem_size, dims: vec![count] });
        let field = Field { offset, size, type_name: String::new(), array, bits: None };
        Member { name: name.into(), field, inner: inner.map(Into::into) }
    }

    fn sample() -> Layouts {
        let mut layouts = Layouts::default();
        let ring = vec![member("prev", 0, 4, None, None), member("next", 4, 4, None, None)];
        layouts.structs.insert("Ring".into(), Struct { size: 8, members: ring });
        let channel = vec![member("id", 0, 4, None, None), member("ring", 8, 8, Some("Ring"), None)];
        layouts.structs.insert("Channel".into(), Struct { size: 16, members: channel });
        let comm = vec![member("channels", 8, 64, Some("Channel"), Some((4, 16)))];
        layouts.structs.insert("Comm".into(), Struct { size: 72, members: comm });
        layouts
    }

    #[test]
    fn paths_go_through_structs_and_arrays() {
        let layouts = sample();
        let place = |path| layouts.field("Comm", path).map(|field| (field.offset, field.size));
        assert_eq!(place("channels"), Some((8, 64)));
        assert_eq!(place("channels.ring.next"), Some((20, 4)));
        assert_eq!(place("channels[3].ring.prev"), Some((64, 4)));
        assert_eq!(place("channels[3]"), Some((56, 16)));
        for path in
            ["", ".", "channels[4]", "channels[", "channels[-1]", "channels.id.x", "none", "channels."]
        {
            assert_eq!(place(path), None, "{path}");
        }
    }

    #[test]
    fn a_part_of_the_layouts_is_whole() {
        let part = sample().restricted_to(&["Channel".into(), "None".into()], &[]);
        assert_eq!(part.structs.keys().collect::<Vec<_>>(), ["Channel", "Ring"]);
    }

    #[test]
    fn a_layout_survives_json() {
        let layouts = sample();
        let text = serde_json::to_string(&layouts).unwrap();
        assert_eq!(serde_json::from_str::<Layouts>(&text).unwrap(), layouts);
    }
}
