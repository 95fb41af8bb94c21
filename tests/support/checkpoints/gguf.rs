//! A writer of GGUF files, honest by default and easy to make lie.

/// A value of a key, with its type.
pub fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

pub fn u32(n: u32) -> Vec<u8> {
    value(4, &n.to_le_bytes())
}

pub fn u16(n: u16) -> Vec<u8> {
    value(2, &n.to_le_bytes())
}

pub fn f32(x: f32) -> Vec<u8> {
    value(6, &x.to_le_bytes())
}

pub fn bool(b: u8) -> Vec<u8> {
    value(7, &[b])
}

/// A text as it stands in a file: its length, then its bytes.
pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

pub fn text(text: &str) -> Vec<u8> {
    value(8, &string(text.as_bytes()))
}

/// A list of `n` elements of one type, which these are.
pub fn list(kind: u32, n: u64, elements: &[u8]) -> Vec<u8> {
    value(
        9,
        &[&kind.to_le_bytes()[..], &n.to_le_bytes(), elements].concat(),
    )
}

pub fn texts(texts: &[&str]) -> Vec<u8> {
    let elements: Vec<u8> = texts.iter().flat_map(|t| string(t.as_bytes())).collect();
    list(8, texts.len() as u64, &elements)
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    /// Innermost first, as they stand in a file.
    pub dims: Vec<u64>,
    pub kind: u32,
    /// In the data; `None`: behind the tensor before.
    pub offset: Option<u64>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    pub fn new(name: &str, dims: &[u64], kind: u32, bytes: &[u8]) -> Self {
        Tensor {
            name: name.into(),
            dims: dims.into(),
            kind,
            offset: None,
            bytes: bytes.into(),
        }
    }
}

/// A file to be written.
#[derive(Clone, Debug)]
pub struct File {
    pub magic: [u8; 4],
    pub version: u32,
    pub keys: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
    pub alignment: usize,
    /// What the file says instead of the numbers of its tensors and keys.
    pub counts: [Option<u64>; 2],
}

impl Default for File {
    fn default() -> Self {
        File {
            magic: *b"GGUF",
            version: 3,
            keys: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            counts: [None; 2],
        }
    }
}

impl File {
    pub fn key(mut self, name: &str, value: Vec<u8>) -> Self {
        self.keys.push((name.into(), value));
        self
    }

    pub fn tensor(mut self, tensor: Tensor) -> Self {
        self.tensors.push(tensor);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        let counts = [self.tensors.len(), self.keys.len()];
        for (said, n) in self.counts.iter().zip(counts) {
            out.extend(said.unwrap_or(n as u64).to_le_bytes());
        }
        for (name, value) in &self.keys {
            out.extend(string(name.as_bytes()));
            out.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment), 0u8);
            out.extend(string(tensor.name.as_bytes()));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(data);
        out
    }
}
