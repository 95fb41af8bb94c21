//! Writers of safetensors and `.pth` files, honest by default and easy to make lie.

use std::fmt::Write as _;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    /// safetensors' name: `F32`, `F16`, `BF16`.
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Float32 numbers that differ from each other and from those of other seeds.
    pub fn f32(name: &str, shape: &[usize], seed: usize) -> Self {
        let n: usize = shape.iter().product();
        let bytes = (0..n)
            .flat_map(|i| ((seed * 1_000_003 + i) as f32).to_le_bytes())
            .collect();
        Tensor {
            name: name.into(),
            dtype: "F32",
            shape: shape.into(),
            bytes,
        }
    }
}

/// A header's entry.
pub fn entry(name: &str, dtype: &str, shape: &[usize], from: usize, to: usize) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}"#)
}

/// A header as given and some data.
pub fn raw_safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// `padding` spaces end the header, so that the data starts at any alignment.
pub fn safetensors(tensors: &[Tensor], padding: usize) -> Vec<u8> {
    let mut header = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut data = Vec::new();
    for t in tensors {
        let from = data.len();
        data.extend(&t.bytes);
        write!(
            header,
            ",{}",
            entry(&t.name, t.dtype, &t.shape, from, data.len())
        )
        .unwrap();
    }
    header.push('}');
    header.extend(std::iter::repeat_n(' ', padding));
    raw_safetensors(&header, &data)
}

/// A tensor as its pickle describes it.
#[derive(Clone, Debug)]
pub struct Pickled {
    pub name: String,
    pub class: &'static str,
    pub key: String,
    pub numel: i32,
    pub offset: i32,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

impl Pickled {
    /// Contiguous, alone in storage `key`.
    pub fn new(t: &Tensor, key: usize) -> Self {
        let mut strides = vec![1; t.shape.len()];
        for i in (1..t.shape.len()).rev() {
            strides[i - 1] = strides[i] * t.shape[i];
        }
        let class = match t.dtype {
            "F32" => "FloatStorage",
            "F16" => "HalfStorage",
            "BF16" => "BFloat16Storage",
            other => panic!("{other}"),
        };
        Pickled {
            name: t.name.clone(),
            class,
            key: key.to_string(),
            numel: t.shape.iter().product::<usize>() as i32,
            offset: 0,
            shape: t.shape.clone(),
            strides,
        }
    }
}

fn text(out: &mut Vec<u8>, s: &str) {
    out.push(b'X');
    out.extend((s.len() as u32).to_le_bytes());
    out.extend(s.as_bytes());
}

fn int(out: &mut Vec<u8>, n: i32) {
    out.push(b'J');
    out.extend(n.to_le_bytes());
}

fn sizes(out: &mut Vec<u8>, sizes: &[usize]) {
    out.push(b'(');
    for &n in sizes {
        int(out, n as i32);
    }
    out.push(b't');
}

/// Protocol 2, as `torch.save` of a dict.
pub fn pickle(tensors: &[Pickled]) -> Vec<u8> {
    let mut out = b"\x80\x02}(".to_vec();
    for t in tensors {
        text(&mut out, &t.name);
        out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut out, "storage");
        out.extend(format!("ctorch\n{}\n", t.class).as_bytes());
        text(&mut out, &t.key);
        text(&mut out, "cpu");
        int(&mut out, t.numel);
        out.extend(b"tQ");
        int(&mut out, t.offset);
        sizes(&mut out, &t.shape);
        sizes(&mut out, &t.strides);
        out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    out.extend(b"u.");
    out
}

/// An entry of a zip archive to be written.
#[derive(Clone, Debug)]
pub struct ZipEntry {
    pub name: String,
    pub data: Vec<u8>,
    pub method: u16,
    pub flags: u16,
    /// What the directory says; `None` for the truth.
    pub size: Option<u32>,
    pub header: Option<u32>,
}

impl ZipEntry {
    pub fn new(name: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        let (name, data) = (name.into(), data.into());
        ZipEntry {
            name,
            data,
            method: 0,
            flags: 0,
            size: None,
            header: None,
        }
    }
}

/// A zip archive (not zip64), 32-bit fields, no checksums.
pub fn zip(entries: &[ZipEntry]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut directory = Vec::new();
    let u16 = |n: usize| (n as u16).to_le_bytes();
    let u32 = |n: usize| (n as u32).to_le_bytes();
    for e in entries {
        let header = e.header.unwrap_or(file.len() as u32);
        let size = e.size.unwrap_or(e.data.len() as u32).to_le_bytes();
        let common = [
            &20u16.to_le_bytes()[..],
            &e.flags.to_le_bytes(),
            &e.method.to_le_bytes(),
            &[0; 8],
            &size,
            &size,
            &u16(e.name.len()),
            &[0; 2],
        ]
        .concat();
        file.extend([b"PK\x03\x04", &common[..], e.name.as_bytes(), &e.data].concat());
        let tail = [&[0; 10][..], &header.to_le_bytes(), e.name.as_bytes()].concat();
        directory.extend([b"PK\x01\x02\x14\x00", &common[..], &tail].concat());
    }
    let start = file.len();
    file.extend(&directory);
    let counts = [u16(entries.len()), u16(entries.len())].concat();
    file.extend([b"PK\x05\x06\0\0\0\0", &counts[..]].concat());
    file.extend([u32(directory.len()), u32(start)].concat());
    file.extend([0; 2]);
    file
}

/// The entries of an honest `.pth`.
pub fn pth_entries(pickle: Vec<u8>, storages: &[Vec<u8>]) -> Vec<ZipEntry> {
    let mut entries = vec![
        ZipEntry::new("archive/data.pkl", pickle),
        ZipEntry::new("archive/byteorder", "little"),
    ];
    for (key, bytes) in storages.iter().enumerate() {
        entries.push(ZipEntry::new(format!("archive/data/{key}"), bytes.clone()));
    }
    entries.push(ZipEntry::new("archive/version", "3\n"));
    entries
}

/// An honest `.pth`, one storage per tensor.
pub fn pth(tensors: &[Tensor]) -> Vec<u8> {
    let pickled: Vec<_> = tensors
        .iter()
        .enumerate()
        .map(|(i, t)| Pickled::new(t, i))
        .collect();
    let storages: Vec<_> = tensors.iter().map(|t| t.bytes.clone()).collect();
    zip(&pth_entries(pickle(&pickled), &storages))
}
