//! Messages between ranks in several processes: a header and a few numbers.
//!
//! The ranks trust each other. But a rank must not crash because another rank is of another
//! version, or has broken memory. So whatever a message says is checked before it is used.

use crate::backend::Limits;
use crate::error::Kind as ErrorKind;
use crate::{Error, Result, reserve};
use std::fmt::Display;

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
    /// To rank 0: who the sender is.
    Hello = 1,
    /// From rank 0: what the model is built with.
    Options = 2,
    /// To rank 0: what the sender has found, and the memory that it needs.
    Plan = 3,
    /// From rank 0: read the weights.
    Go = 4,
    /// The share of the weights that the sender has read.
    Progress = 5,
    /// To rank 0: the sender has its weights.
    Ready = 6,
    /// From rank 0: all ranks have their weights.
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
    /// From rank 0 when it has nothing to do: it is alive.
    Ping = 13,
    /// To rank 0: the sender is alive, too, and how long its exchanges took.
    Pong = 14,
    /// From rank 0: an exchange was given up. Which ranks are still alive?
    Ask = 15,
    /// To rank 0: an exchange does not end.
    Stuck = 16,
    /// The error with which the sender ends.
    Failed = 17,
    /// From rank 0: the model is freed. To rank 0: the answer to that.
    Bye = 18,
    /// From rank 0: an adapter to load.
    Adapt = 19,
    /// To rank 0: the adapter is loaded, or why it is not.
    Adapted = 20,
    /// From rank 0: an adapter that nobody uses any more.
    Forget = 21,
}

/// A message that came.
#[derive(Debug)]
pub struct Message {
    /// What the message is about.
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

    /// A reader of the body.
    pub fn reader(&self) -> Reader<'_> {
        Reader::of(&self.body)
    }
}

/// A message that is being written. It keeps its memory from one message to the next.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    /// The number of bytes of the message that there was no room for.
    refused: usize,
}

impl Writer {
    /// Makes room for messages of `message` bytes, so that messages of steps are never refused.
    pub fn make_room(&mut self, message: usize) -> Result<()> {
        self.bytes.clear();
        let most = message.saturating_add(HEADER);
        reserve::vec("messages to other ranks", &mut self.bytes, most)
    }

    /// Begins a message with an empty body.
    pub fn begin(&mut self, kind: Kind) -> &mut Self {
        self.bytes.clear();
        self.refused = 0;
        self.u32(kind as u32).u32(0).u64(0)
    }

    /// Fails if there was no room for all of the message, which must not be sent then.
    pub fn check(&self) -> Result<()> {
        match self.refused {
            0 => Ok(()),
            more => {
                let what = "a message to another rank";
                Err(reserve::refused::<u8>(what, self.bytes.len(), more))
            }
        }
    }

    /// Ends the message, which is whole and the `number`th to its receiver.
    pub fn end(&mut self, number: u64) -> &[u8] {
        let len = (self.bytes.len() - HEADER) as u32;
        self.bytes[4..8].copy_from_slice(&len.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&number.to_le_bytes());
        &self.bytes
    }

    /// Writes a number.
    pub fn u32(&mut self, n: u32) -> &mut Self {
        self.raw(&n.to_le_bytes())
    }

    /// Writes a number.
    pub fn u64(&mut self, n: u64) -> &mut Self {
        self.raw(&n.to_le_bytes())
    }

    /// Writes a length or a size.
    pub fn size(&mut self, n: usize) -> &mut Self {
        self.u64(n as u64)
    }

    /// Writes a number.
    pub fn f32(&mut self, x: f32) -> &mut Self {
        self.u32(x.to_bits())
    }

    /// Writes a text or a path, with its length.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.size(bytes.len()).raw(bytes)
    }

    /// Writes numbers, with their count.
    pub fn list(&mut self, numbers: impl ExactSizeIterator<Item = u32>) -> &mut Self {
        self.size(numbers.len());
        for n in numbers {
            self.u32(n);
        }
        self
    }

    /// Writes bytes without their count.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        match self.bytes.try_reserve(bytes.len()) {
            Ok(()) => self.bytes.extend_from_slice(bytes),
            Err(_) => self.refused += bytes.len(),
        }
        self
    }

    /// The number of bytes of the longest step. Only a page can be a longer message.
    pub fn most(limits: &Limits) -> usize {
        let positions = limits.max_positions.div_ceil(limits.page_size);
        // Each span has at least one row.
        let pages = positions.saturating_add(1).saturating_mul(4);
        let per_row = pages.saturating_add(4 + 4 + 44 + 4 + 4);
        let rows = limits.max_rows.saturating_mul(per_row);
        LONGEST_EARLY.max(rows.saturating_add(1024))
    }
}

/// The rest of a message. Every function fails if nothing is left to read.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

fn short() -> Error {
    Error::Peer("a message that is too short".into())
}

pub(super) fn too_many(what: &str, found: impl Display, most: impl Display) -> Error {
    Error::Peer(format!("a message with {what} {found}, at most {most}"))
}

impl<'a> Reader<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// All bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    fn raw(&mut self, n: usize) -> Result<&'a [u8]> {
        let (first, rest) = self.rest.split_at_checked(n).ok_or_else(short)?;
        self.rest = rest;
        Ok(first)
    }

    /// Reads a number.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.raw(4)?.try_into().expect("4")))
    }

    /// Reads a number.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.raw(8)?.try_into().expect("8")))
    }

    /// Reads a length or a size.
    pub fn size(&mut self) -> Result<usize> {
        let n = self.u64()?;
        usize::try_from(n).map_err(|_| too_many("a length of", n, usize::MAX))
    }

    /// Reads a number.
    pub fn f32(&mut self) -> Result<f32> {
        Ok(f32::from_bits(self.u32()?))
    }

    /// Reads bytes, which have their length before them.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.size()?;
        self.raw(n)
    }

    /// Reads a text.
    pub fn text(&mut self) -> Result<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// Reads at most `most` numbers, all of which must be `allowed`.
    pub fn list(
        &mut self,
        what: &'static str,
        most: usize,
        allowed: &dyn Fn(u32) -> bool,
    ) -> Result<impl ExactSizeIterator<Item = u32> + Clone + use<'a>> {
        let n = self.size()?;
        if n > most {
            return Err(too_many(what, n, most));
        }
        let (numbers, _) = self.raw(4 * n)?.as_chunks::<4>();
        let numbers = numbers.iter().map(|&n| u32::from_le_bytes(n));
        match numbers.clone().find(|&n| !allowed(n)) {
            Some(n) => Err(Error::Peer(format!("a message with {n} among its {what}"))),
            None => Ok(numbers),
        }
    }
}

/// In messages, an [`ErrorKind`] is its place in this list.
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
    /// Writes an error: its kind and its sentence.
    pub fn error(&mut self, error: &Error) -> &mut Self {
        let kind = ERRORS.iter().position(|&kind| kind == error.kind());
        let kind = kind.expect("all kinds are listed") as u32;
        self.u32(kind).bytes(error.to_string().as_bytes())
    }
}

impl Reader<'_> {
    /// Reads an error of another rank.
    pub fn error(&mut self) -> Result<(ErrorKind, String)> {
        let kind = ERRORS.get(self.u32()? as usize).copied();
        Ok((kind.unwrap_or(ErrorKind::Internal), self.text()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_kind_and_sentence() {
        let error = Error::no_memory("the weights", 10, 5);
        let mut writer = Writer::default();
        let bytes = writer.begin(Kind::Failed).error(&error).end(0);
        let message = Message::read(bytes, 0).unwrap();
        let (kind, sentence) = message.reader().error().unwrap();
        assert_eq!((kind, sentence), (ErrorKind::NoMemory, error.to_string()));
    }

    #[test]
    fn the_longest_step_of_enormous_limits_does_not_overflow() {
        let limits = |max_positions, max_rows| Limits {
            page_size: 16,
            n_pages: usize::MAX,
            max_positions,
            max_rows,
            max_wanted: 32,
            vocab_size: 100,
        };
        // 65 numbers for pages and 60 bytes for each of 4096 rows.
        assert_eq!(Writer::most(&limits(1024, 4096)), 1024 + 4096 * 320);
        assert_eq!(Writer::most(&limits(1 << 60, 513)), usize::MAX);
        assert_eq!(Writer::most(&limits(usize::MAX, usize::MAX)), usize::MAX);
    }

    #[test]
    fn messages_within_the_room_that_was_made_take_no_more() {
        let mut writer = Writer::default();
        writer.make_room(1000).unwrap();
        let room = writer.bytes.capacity();
        for n in [1000, 3] {
            let message = writer.begin(Kind::Page).raw(&vec![7; n]);
            message.check().unwrap();
            assert_eq!(message.end(0).len(), HEADER + n);
            assert_eq!(writer.bytes.capacity(), room);
        }
        // This is as if there had been no room for the last 10 bytes. The next message has room.
        writer.begin(Kind::Page).raw(&[7; 5]).refused = 10;
        let error = writer.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoMemory);
        let sentence = error.to_string();
        assert!(
            sentence.starts_with("a message to another rank needs 31 bytes"),
            "{sentence}"
        );
        writer.begin(Kind::Page).check().unwrap();
    }
}
