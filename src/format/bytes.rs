//! Little-endian fields one after another, none of them trusted to be there.

/// What is left to read.
#[derive(Default)]
pub(super) struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// How much is left.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(n)?;
        self.rest = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// UTF-8 text of `n` bytes.
    pub fn text(&mut self, n: usize) -> Option<&'a str> {
        std::str::from_utf8(self.take(n)?).ok()
    }

    /// UTF-8 text up to the next newline, which is consumed.
    pub fn line(&mut self) -> Option<&'a str> {
        let end = self.rest.iter().position(|&b| b == b'\n')?;
        let line = self.text(end)?;
        self.take(1)?;
        Some(line)
    }
}
