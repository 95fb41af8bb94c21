//! What ranks in several processes say to each other: messages of a header and a few numbers.
//!
//! The ranks trust each other, but a rank must not crash because another one is of another version,
//! or because its memory is broken. So whatever a message says is checked before it is used.

use crate::backend::{Limits, RowKind, Span, Step};
use crate::error::Kind as ErrorKind;
use crate::{Error, Result, reserve};
use std::ops::Range;

/// Bytes of a header: the kind, the length of what follows, and the number of the message.
pub const HEADER: usize = 16;

/// The most bytes of a message before the ranks know their model.
pub const LONGEST_EARLY: usize = 1 << 20;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a message is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)*
        }

        impl Kind {
            fn of(number: u32) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// To rank 0: who it is.
    Hello = 1,
    /// From rank 0: what the model is built with.
    Options = 2,
    /// To rank 0: what it has found, and the memory that it needs.
    Plan = 3,
    /// From rank 0: read the weights.
    Go = 4,
    /// The share that has been read.
    Progress = 5,
    /// To rank 0: the weights are there.
    Ready = 6,
    /// From rank 0: so are everybody's.
    Start = 7,
    /// From rank 0: a step.
    Step = 8,
    /// From rank 0: pages to copy.
    Copy = 9,
    /// From rank 0: pages to copy out. Each comes back as a [`Kind::Page`].
    Save = 10,
    /// From rank 0: pages to copy in. Each follows as a [`Kind::Page`].
    Load = 11,
    /// A page.
    Page = 12,
    /// From rank 0, which has nothing to do: it is there.
    Ping = 13,
    /// To rank 0: this rank is there, too, and how long its exchanges took.
    Pong = 14,
    /// From rank 0: an exchange was given up. Who is still there?
    Ask = 15,
    /// To rank 0: an exchange does not end.
    Stuck = 16,
    /// What this rank ends with.
    Failed = 17,
    /// The model is freed; and the answer.
    Bye = 18,
}

/// A message that came.
#[derive(Debug)]
pub struct Message {
    /// What it is about.
    pub kind: Kind,
    /// What follows the header.
    pub body: Vec<u8>,
}

impl Message {
    /// Reads the message that is the `number`th of its sender.
    pub fn read(bytes: &[u8], number: u64) -> Result<Message> {
        let mut reader = Reader::of(bytes);
        let (kind, len) = (reader.u32()?, reader.u32()? as usize);
        let found = reader.u64()?;
        if found != number {
            let detail = format!("message {found} came instead of message {number}");
            return Err(Error::Peer(detail));
        }
        let kind = Kind::of(kind)
            .ok_or_else(|| Error::Peer(format!("a message of an unknown kind, {kind}")))?;
        if reader.rest.len() != len {
            let found = reader.rest.len();
            let detail = format!("a message {kind:?} of {found} bytes, its header says {len}");
            return Err(Error::Peer(detail));
        }
        Ok(Message {
            kind,
            body: reserve::copy("a message of another rank", reader.rest)?,
        })
    }

    /// Its body, to be read.
    pub fn reader(&self) -> Reader<'_> {
        Reader::of(&self.body)
    }
}

/// A message that is being written. It keeps its memory from one message to the next.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Begins a message with an empty body.
    pub fn begin(&mut self, kind: Kind) -> &mut Self {
        self.bytes.clear();
        self.u32(kind as u32).u32(0).u64(0)
    }

    /// Ends the message, which is the `number`th to its receiver.
    pub fn end(&mut self, number: u64) -> &[u8] {
        let len = (self.bytes.len() - HEADER) as u32;
        self.bytes[4..8].copy_from_slice(&len.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&number.to_le_bytes());
        &self.bytes
    }

    /// A number.
    pub fn u32(&mut self, n: u32) -> &mut Self {
        self.raw(&n.to_le_bytes())
    }

    /// A number.
    pub fn u64(&mut self, n: u64) -> &mut Self {
        self.raw(&n.to_le_bytes())
    }

    /// A length or a size.
    pub fn size(&mut self, n: usize) -> &mut Self {
        self.u64(n as u64)
    }

    /// A number.
    pub fn f32(&mut self, x: f32) -> &mut Self {
        self.u32(x.to_bits())
    }

    /// A text or a path, with its length.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.size(bytes.len()).raw(bytes)
    }

    /// Numbers, with how many there are.
    pub fn list(&mut self, numbers: impl ExactSizeIterator<Item = u32>) -> &mut Self {
        self.size(numbers.len());
        for n in numbers {
            self.u32(n);
        }
        self
    }

    /// Bytes without their number.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// What the ranks need to compute a step. How tokens are chosen is rank 0's business.
    pub fn step(&mut self, step: &Step) -> &mut Self {
        self.list(step.tokens.iter().map(|&token| token as u32));
        self.list(step.slots.iter().copied());
        self.size(step.spans.len());
        for span in &step.spans {
            let kind = u32::from(span.kind == RowKind::Decode);
            self.u32(kind).size(span.position);
            self.size(span.rows.start).size(span.rows.end);
            self.size(span.pages.start).size(span.pages.end);
        }
        self.list(step.pages.iter().copied());
        self.list(step.wanted.iter().copied())
    }

    /// Bytes of the longest step, and more than any other message but a page has.
    pub fn most(limits: &Limits) -> usize {
        let positions = limits.max_positions.div_ceil(limits.page_size);
        // Each span has at least one row.
        let per_row = 4 + 4 + 44 + 4 + 4 * (positions + 1);
        LONGEST_EARLY.max(1024 + limits.max_rows.saturating_mul(per_row))
    }
}

/// The rest of a message. Every function fails where nothing is left.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

fn short() -> Error {
    Error::Peer("a message that is too short".into())
}

fn nonsense(what: &str, found: impl std::fmt::Display, most: impl std::fmt::Display) -> Error {
    Error::Peer(format!("a message with {what} {found}, at most {most}"))
}

impl<'a> Reader<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    fn raw(&mut self, n: usize) -> Result<&'a [u8]> {
        let (first, rest) = self.rest.split_at_checked(n).ok_or_else(short)?;
        self.rest = rest;
        Ok(first)
    }

    /// A number.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.raw(4)?.try_into().expect("4")))
    }

    /// A number.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.raw(8)?.try_into().expect("8")))
    }

    /// A length or a size.
    pub fn size(&mut self) -> Result<usize> {
        let n = self.u64()?;
        usize::try_from(n).map_err(|_| nonsense("a length of", n, usize::MAX))
    }

    /// A number.
    pub fn f32(&mut self) -> Result<f32> {
        Ok(f32::from_bits(self.u32()?))
    }

    /// Bytes, with their length before them.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.size()?;
        self.raw(n)
    }

    /// A text.
    pub fn text(&mut self) -> Result<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// At most `most` numbers below `end`.
    pub fn list(
        &mut self,
        what: &'static str,
        most: usize,
        allowed: &dyn Fn(u32) -> bool,
    ) -> Result<impl ExactSizeIterator<Item = u32> + Clone + use<'a>> {
        let n = self.size()?;
        if n > most {
            return Err(nonsense(what, n, most));
        }
        let (numbers, _) = self.raw(4 * n)?.as_chunks::<4>();
        let numbers = numbers.iter().map(|&n| u32::from_le_bytes(n));
        match numbers.clone().find(|&n| !allowed(n)) {
            Some(n) => Err(Error::Peer(format!("a message with {n} among its {what}"))),
            None => Ok(numbers),
        }
    }

    /// Reads a step and checks that it is one for these limits.
    pub fn step(&mut self, limits: &Limits, step: &mut Step) -> Result<()> {
        step.clear();
        let slots = limits.n_pages.saturating_mul(limits.page_size);
        let vocabulary = limits.vocab_size;
        let tokens = self.list("tokens", limits.max_rows, &|n| (n as usize) < vocabulary)?;
        let rows = tokens.len();
        reserve::vec("a step", &mut step.tokens, rows)?;
        step.tokens.extend(tokens.map(|n| n as crate::Token));
        let is_slot = |n: u32| n == Step::NO_SLOT || (n as usize) < slots;
        let of_rows = self.list("slots", limits.max_rows, &is_slot)?;
        if of_rows.len() != rows {
            let what = format!("a step of {rows} tokens and {} slots", of_rows.len());
            return Err(Error::Peer(what));
        }
        reserve::vec("a step", &mut step.slots, rows)?;
        step.slots.extend(of_rows);
        let n_spans = self.size()?;
        if n_spans > rows {
            return Err(nonsense("spans", n_spans, rows));
        }
        reserve::vec("a step", &mut step.spans, n_spans)?;
        for _ in 0..n_spans {
            let kind = match self.u32()? {
                0 => RowKind::Prefill,
                _ => RowKind::Decode,
            };
            let position = self.size()?;
            let [rows, pages] = [self.range()?, self.range()?];
            step.spans.push(Span {
                rows,
                kind,
                position,
                pages,
            });
        }
        let most_pages = rows.saturating_mul(limits.max_positions.div_ceil(limits.page_size) + 1);
        let pages = self.list("pages", most_pages, &|n| (n as usize) < limits.n_pages)?;
        reserve::vec("a step", &mut step.pages, pages.len())?;
        step.pages.extend(pages);
        let wanted = self.list("wanted rows", limits.max_wanted, &|n| (n as usize) < rows)?;
        reserve::vec("a step", &mut step.wanted, wanted.len())?;
        step.wanted.extend(wanted);
        check_spans(step, limits)
    }

    fn range(&mut self) -> Result<Range<usize>> {
        Ok(self.size()?..self.size()?)
    }
}

/// The promises of [`Step`] that its backend relies on.
fn check_spans(step: &Step, limits: &Limits) -> Result<()> {
    let wrong = |what: &str| Err(Error::Peer(format!("a step with {what}")));
    let mut row = 0;
    let mut generated = true;
    for span in &step.spans {
        let len = span.rows.len();
        if span.rows.start != row || len == 0 || span.rows.end > step.tokens.len() {
            return wrong("spans that do not partition its rows");
        }
        row = span.rows.end;
        let end = span.position.saturating_add(len);
        if end > limits.max_positions {
            return wrong("a position beyond max_seq_len");
        }
        if step.pages.get(span.pages.clone()).is_none()
            || span.pages.len().saturating_mul(limits.page_size) < end
        {
            return wrong("a sequence that lacks pages");
        }
        if span.kind == RowKind::Decode && !generated {
            return wrong("generated rows behind those of prompts");
        }
        generated = span.kind == RowKind::Decode;
    }
    if row != step.tokens.len() {
        return wrong("rows of no sequence");
    }
    match step.wanted.is_sorted_by(|a, b| a < b) {
        true => Ok(()),
        false => wrong("wanted rows that do not ascend"),
    }
}

/// The numbers of [`ErrorKind`] in messages.
const ERRORS: [ErrorKind; 14] = [
    ErrorKind::InvalidArgument,
    ErrorKind::Io,
    ErrorKind::Format,
    ErrorKind::Unsupported,
    ErrorKind::NoMemory,
    ErrorKind::Device,
    ErrorKind::DeviceMemory,
    ErrorKind::Peer,
    ErrorKind::TooLong,
    ErrorKind::Batch,
    ErrorKind::Busy,
    ErrorKind::Cancelled,
    ErrorKind::Poisoned,
    ErrorKind::Internal,
];

impl Writer {
    /// An error: its kind and its sentence.
    pub fn error(&mut self, error: &Error) -> &mut Self {
        let kind = ERRORS.iter().position(|&kind| kind == error.kind());
        let kind = kind.expect("all kinds are listed") as u32;
        self.u32(kind).bytes(error.to_string().as_bytes())
    }
}

impl Reader<'_> {
    /// An error of another rank.
    pub fn error(&mut self) -> Result<(ErrorKind, String)> {
        let kind = ERRORS.get(self.u32()? as usize).copied();
        Ok((kind.unwrap_or(ErrorKind::Internal), self.text()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        page_size: 16,
        n_pages: 10,
        max_positions: 64,
        max_rows: 8,
        max_wanted: 4,
        vocab_size: 100,
    };

    fn a_step() -> Step {
        Step {
            tokens: vec![1, 2, 99],
            slots: vec![159, Step::NO_SLOT, 17],
            spans: vec![
                Span {
                    rows: 0..1,
                    kind: RowKind::Decode,
                    position: 47,
                    pages: 0..3,
                },
                Span {
                    rows: 1..3,
                    kind: RowKind::Prefill,
                    position: 0,
                    pages: 3..4,
                },
            ],
            pages: vec![4, 5, 9, 1],
            wanted: vec![0, 2],
            ..Step::default()
        }
    }

    fn sent(step: &Step) -> Result<Step> {
        let mut writer = Writer::default();
        let bytes = writer.begin(Kind::Step).step(step).end(7);
        assert!(bytes.len() <= Writer::most(&LIMITS));
        let message = Message::read(bytes, 7)?;
        assert_eq!(message.kind, Kind::Step);
        let mut read = Step::default();
        message.reader().step(&LIMITS, &mut read)?;
        Ok(read)
    }

    #[test]
    fn a_step_arrives_as_it_was() {
        assert_eq!(sent(&a_step()).unwrap(), a_step());
        let nothing = Step::default();
        assert_eq!(sent(&nothing).unwrap(), nothing);
    }

    #[test]
    fn a_step_that_would_crash_a_backend_is_refused() {
        type Break = fn(&mut Step);
        let breaks: [(&str, Break); 14] = [
            ("100 among its tokens", |s| s.tokens[0] = 100),
            ("4294967295 among its tokens", |s| s.tokens[0] = -1),
            ("160 among its slots", |s| s.slots[0] = 160),
            ("2 slots", |s| s.slots.truncate(2)),
            ("10 among its pages", |s| s.pages[0] = 10),
            ("3 among its wanted rows", |s| s.wanted[1] = 3),
            ("do not ascend", |s| s.wanted[0] = 2),
            ("partition", |s| s.spans[1].rows.start = 0),
            ("partition", |s| s.spans[1].rows.end = 4),
            ("rows of no sequence", |s| s.spans.truncate(1)),
            ("beyond max_seq_len", |s| s.spans[0].position = usize::MAX),
            ("lacks pages", |s| s.spans[0].position = 48),
            ("lacks pages", |s| s.spans[0].pages = 3..9),
            ("behind those of prompts", |s| {
                s.spans[0].kind = RowKind::Prefill;
                s.spans[1].kind = RowKind::Decode;
            }),
        ];
        for (sentence, break_it) in breaks {
            let mut step = a_step();
            break_it(&mut step);
            let error = sent(&step).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}, not {sentence}");
        }
    }

    /// Every message with any one of its bytes changed, and every beginning of it, is read or
    /// refused; nothing panics, nothing allocates what the message only claims.
    #[test]
    fn broken_messages_are_errors() {
        let mut writer = Writer::default();
        let bytes = writer.begin(Kind::Step).step(&a_step()).end(3).to_vec();
        let read = |bytes: &[u8]| -> Result<()> {
            let message = Message::read(bytes, 3)?;
            message.reader().step(&LIMITS, &mut Step::default())?;
            message.reader().error().map(drop)
        };
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                let read = read(&changed);
                assert!(at >= HEADER || read.is_err(), "{at}");
            }
        }
        let error = Message::read(&bytes, 4).unwrap_err().to_string();
        assert_eq!(error, "message 3 came instead of message 4");
    }

    #[test]
    fn errors_keep_their_kind_and_sentence() {
        let error = Error::no_memory("the weights", 10, 5);
        let mut writer = Writer::default();
        let bytes = writer.begin(Kind::Failed).error(&error).end(0);
        let message = Message::read(bytes, 0).unwrap();
        let (kind, sentence) = message.reader().error().unwrap();
        assert_eq!((kind, sentence), (ErrorKind::NoMemory, error.to_string()));
    }
}
