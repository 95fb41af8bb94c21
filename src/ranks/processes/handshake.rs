//! What ranks in several processes agree on before a byte of weights is read: who they are, what
//! the model is built with, that all have opened the same checkpoint, and that there is room.

use super::link::Link;
use super::message::{Kind, Message, Reader, Writer};
use crate::backend::gpu::device::GroupId;
use crate::ranks::board::MAX_RANKS;
use crate::ranks::nodes::{self, Processors};
use crate::{Dtype, Error, Precision, Result};
use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The number of the protocol. It changes whenever messages change.
pub(super) const PROTOCOL: u32 = 3;

/// The first bytes of the first message. They show that the message is one of ours.
const MAGIC: &[u8] = b"llamabi";

/// The most processors of a machine that a message may name.
const MOST_PROCESSORS: usize = 1 << 16;

/// The sizes of a model that a message may say. Products of two of them do not overflow.
const SIZES: RangeInclusive<usize> = 1..=u32::MAX as usize;

/// Who a rank is.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// The name of its machine.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// The processors that it may use.
    pub processors: Processors,
}

impl Hello {
    /// This process.
    pub fn own() -> Hello {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Hello {
            host: host.trim().to_owned(),
            pid: std::process::id(),
            processors: nodes::allowed(),
        }
    }

    /// Sends this to rank 0.
    pub fn tell(&self, link: &mut Link) -> Result<()> {
        let (rank, size) = (link.rank(), link.size());
        link.tell(0, Kind::Hello, |m| {
            m.bytes(MAGIC).u32(PROTOCOL);
            m.bytes(env!("CARGO_PKG_VERSION").as_bytes());
            m.size(rank).size(size);
            m.bytes(self.host.as_bytes()).u32(self.pid);
            m.list(self.processors.iter().map(|&n| n as u32))
        })
    }

    /// Reads the message of rank `rank` of `size`.
    pub fn read(message: &Message, rank: usize, size: usize) -> Result<Hello> {
        let mut m = message.reader();
        let same = |what: &str, own: &str, theirs: String| match own == theirs {
            true => Ok(()),
            false => Err(Error::Peer(format!(
                "{what} is {theirs}, that of rank 0 is {own}"
            ))),
        };
        same("its library", "llamabi", m.text()?)?;
        same("its protocol", &PROTOCOL.to_string(), m.u32()?.to_string())?;
        same("its version", env!("CARGO_PKG_VERSION"), m.text()?)?;
        let (its_rank, its_size) = (m.size()?, m.size()?);
        same("its number", &rank.to_string(), its_rank.to_string())?;
        same(
            "its number of ranks",
            &size.to_string(),
            its_size.to_string(),
        )?;
        let (host, pid) = (m.text()?, m.u32()?);
        let processors = m.list("processors", MOST_PROCESSORS, &|_| true)?;
        Ok(Hello {
            host,
            pid,
            processors: processors.map(|n| n as usize).collect(),
        })
    }

    /// Whether two ranks run on some of the same processors.
    fn overlaps(&self, other: &Hello) -> bool {
        let has = |processor| other.processors.contains(processor);
        self.host == other.host && self.processors.iter().any(has)
    }

    /// How many of the ranks in `all` run on processors of this one. This rank is one of them.
    pub fn sharers(&self, all: &[Hello]) -> usize {
        all.iter()
            .filter(|other| self.overlaps(other))
            .count()
            .max(1)
    }
}

/// The options that the model is built with, as far as the ranks must agree on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// As in [`crate::BuildOptions`].
    pub max_seq_len: usize,
    /// As in [`crate::BuildOptions`].
    pub max_batch_size: usize,
    /// As in [`crate::BuildOptions`].
    pub prefill_chunk: Option<usize>,
    /// As in [`crate::BuildOptions`].
    pub weights_dtype: Option<Dtype>,
    /// As in [`crate::BuildOptions`].
    pub kv_dtype: Option<Dtype>,
    /// As in [`crate::BuildOptions`].
    pub precision: Precision,
    /// How long a rank may be silent.
    pub timeout: Duration,
    /// As in [`crate::BuildOptions`].
    pub adapters: Vec<(PathBuf, f32)>,
    /// The number of tokens of the tokenizer. Only rank 0 opens the tokenizer.
    pub n_tokens: usize,
    /// How many ranks share the receiver's processors.
    pub sharers: usize,
    /// The group in which the ranks' GPUs exchange by themselves, if they do.
    pub group: Option<GroupId>,
}

const PRECISIONS: [Precision; 3] = [Precision::Auto, Precision::Full, Precision::Fast];

/// The place of an element in a list, counted from 1; 0 means none.
fn number<T: PartialEq>(list: &[T], element: Option<&T>) -> u32 {
    let at = element.and_then(|element| list.iter().position(|each| each == element));
    at.map_or(0, |at| at as u32 + 1)
}

fn element<T: Copy>(list: &[T], m: &mut Reader<'_>) -> Result<Option<T>> {
    let n = m.u32()? as usize;
    match n.checked_sub(1).map(|at| list.get(at).copied()) {
        None => Ok(None),
        Some(Some(element)) => Ok(Some(element)),
        Some(None) => Err(Error::Peer(format!(
            "a message with an unknown option, {n}"
        ))),
    }
}

fn size_in(range: &RangeInclusive<usize>, what: &str, m: &mut Reader<'_>) -> Result<usize> {
    let n = m.size()?;
    match range.contains(&n) {
        true => Ok(n),
        false => Err(Error::Peer(format!(
            "a message with {what} {n}, expected {} to {}",
            range.start(),
            range.end()
        ))),
    }
}

impl Offer {
    /// Writes the offer.
    pub fn write<'m>(&self, m: &'m mut Writer) -> &'m mut Writer {
        m.size(self.max_seq_len).size(self.max_batch_size);
        m.size(self.prefill_chunk.unwrap_or(0));
        m.u32(number(&Dtype::ALL, self.weights_dtype.as_ref()));
        m.u32(number(&Dtype::ALL, self.kv_dtype.as_ref()));
        m.u32(number(&PRECISIONS, Some(&self.precision)));
        m.u64(self.timeout.as_millis() as u64);
        m.size(self.n_tokens).size(self.sharers);
        m.size(self.adapters.len());
        for (path, scale) in &self.adapters {
            m.bytes(path.as_os_str().as_bytes()).f32(*scale);
        }
        m.bytes(self.group.as_ref().map_or(&[], |group| &group[..]))
    }

    /// Reads the offer.
    pub fn read(message: &Message) -> Result<Offer> {
        let m = &mut message.reader();
        let max_seq_len = size_in(&SIZES, "max_seq_len", m)?;
        let max_batch_size = size_in(&SIZES, "max_batch_size", m)?;
        let prefill_chunk = Some(m.size()?).filter(|&n| n > 0);
        let (weights_dtype, kv_dtype) = (element(&Dtype::ALL, m)?, element(&Dtype::ALL, m)?);
        let precision = element(&PRECISIONS, m)?.unwrap_or_default();
        let timeout = Duration::from_millis(m.u64()?);
        let n_tokens = size_in(&SIZES, "a number of tokens of", m)?;
        let sharers = size_in(&(1..=MAX_RANKS), "a number of sharers of", m)?;
        let mut adapters = Vec::new();
        for _ in 0..m.size()? {
            adapters.push((read_path(m)?, m.f32()?));
        }
        let group = match m.bytes()? {
            [] => None,
            group => Some(group.try_into().map_err(|_| {
                let n = group.len();
                Error::Peer(format!("a name of {n} bytes for a group of GPUs"))
            })?),
        };
        Ok(Offer {
            max_seq_len,
            max_batch_size,
            prefill_chunk,
            weights_dtype,
            kv_dtype,
            precision,
            timeout,
            adapters,
            n_tokens,
            sharers,
            group,
        })
    }
}

fn read_path(m: &mut Reader<'_>) -> Result<PathBuf> {
    Ok(Path::new(OsStr::from_bytes(m.bytes()?)).to_owned())
}

/// What a rank has found out before it loads.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Whether the rank runs on a GPU.
    pub on_gpu: bool,
    /// The fingerprint of the checkpoint ([`crate::checkpoint::fingerprint`]).
    pub fingerprint: u64,
    /// The checkpoint, as the rank calls it.
    pub path: PathBuf,
    /// Bytes that the rank will take.
    pub needed: u64,
    /// How many of these its weights take.
    pub weight_bytes: u64,
    /// How many of these its part of the KV pool takes.
    pub kv_bytes: u64,
    /// Bytes that its machine or its GPU can still give.
    pub available: u64,
    /// Its device in words.
    pub device_name: String,
}

impl Found {
    /// Writes what a rank has found.
    pub fn write<'m>(&self, m: &'m mut Writer) -> &'m mut Writer {
        m.u32(self.on_gpu.into()).u64(self.fingerprint);
        m.bytes(self.path.as_os_str().as_bytes());
        m.u64(self.needed).u64(self.weight_bytes).u64(self.kv_bytes);
        m.u64(self.available).bytes(self.device_name.as_bytes())
    }

    /// Reads what a rank has found.
    pub fn read(message: &Message) -> Result<Found> {
        let m = &mut message.reader();
        Ok(Found {
            on_gpu: m.u32()? != 0,
            fingerprint: m.u64()?,
            path: read_path(m)?,
            needed: m.u64()?,
            weight_bytes: m.u64()?,
            kv_bytes: m.u64()?,
            available: m.u64()?,
            device_name: m.text()?,
        })
    }

    /// Whether this rank has the checkpoint of rank 0, and a device of its kind.
    ///
    /// # Errors
    /// [`Error::Peer`] with both fingerprints and both paths, or with both devices.
    pub fn check_same(&self, first: &Found, name: &str) -> Result<()> {
        if self.on_gpu != first.on_gpu {
            return Err(Error::Peer(format!(
                "{name} runs on {}, rank 0 on {}: ranks are all on GPUs or all on CPUs",
                self.device_name, first.device_name
            )));
        }
        if self.fingerprint == first.fingerprint {
            return Ok(());
        }
        Err(Error::Peer(format!(
            "{name} has another checkpoint: {} has the fingerprint {:016x}, and {} of rank 0 has \
             {:016x}",
            crate::sentence::path(&self.path),
            self.fingerprint,
            crate::sentence::path(&first.path),
            first.fingerprint
        )))
    }
}

/// Checks the page size in [`Kind::Ready`] of the rank `name`: rank 0 knows that it is `page`.
///
/// # Errors
/// [`Error::Peer`] with both sizes.
pub fn check_page(ready: &Message, page: usize, name: &str) -> Result<()> {
    match ready.reader().size()? {
        theirs if theirs == page => Ok(()),
        theirs => Err(Error::Peer(format!(
            "{name} has pages of {theirs} bytes, rank 0 expects {page}"
        ))),
    }
}

/// Checks that the machines of all ranks have room for the ranks that run on them. `names` are the
/// names of the ranks.
///
/// # Errors
/// [`Error::NoMemory`] or [`Error::DeviceMemory`] for the first rank that has no room.
pub fn check_room(hellos: &[Hello], found: &[Found], names: &[String]) -> Result<()> {
    for (rank, hello) in hellos.iter().enumerate() {
        let own = &found[rank];
        if own.on_gpu {
            if own.needed > own.available {
                return Err(Error::DeviceMemory {
                    what: format!("the share of {}", names[rank]),
                    needed: own.needed,
                    available: own.available,
                });
            }
            continue;
        }
        let before = hellos.iter().zip(found).take(rank + 1);
        let same = before.filter(|(other, _)| other.host == hello.host);
        let needed = same.fold(0, |sum: u64, (_, found)| sum.saturating_add(found.needed));
        let available = own.available;
        if needed > available {
            let what = format!("{}, with the ranks before it on its machine,", names[rank]);
            return Err(Error::no_memory(what, needed, available));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(write: impl FnOnce(&mut Writer) -> &mut Writer, kind: Kind) -> Message {
        let mut writer = Writer::default();
        write(writer.begin(kind));
        Message::read(writer.end(0), 0).unwrap()
    }

    fn an_offer() -> Offer {
        Offer {
            max_seq_len: 512,
            max_batch_size: 3,
            prefill_chunk: None,
            weights_dtype: Some(Dtype::Nf4),
            kv_dtype: None,
            precision: Precision::Fast,
            timeout: Duration::from_millis(1234),
            adapters: vec![("a/b".into(), 0.5), ("c".into(), -1.0)],
            n_tokens: 32_000,
            sharers: 2,
            group: Some(std::array::from_fn(|i| i as u8)),
        }
    }

    #[test]
    fn an_offer_arrives_as_it_was() {
        let offer = an_offer();
        let message = sent(|m| offer.write(m), Kind::Options);
        assert_eq!(Offer::read(&message).unwrap(), offer);
        let whole = Offer {
            prefill_chunk: Some(7),
            group: None,
            weights_dtype: None,
            kv_dtype: Some(Dtype::F32),
            adapters: Vec::new(),
            ..offer
        };
        let message = sent(|m| whole.write(m), Kind::Options);
        assert_eq!(Offer::read(&message).unwrap(), whole);
    }

    #[test]
    fn an_offer_with_impossible_sizes_is_refused() {
        type Set = fn(&mut Offer, usize);
        let set_length: Set = |offer, n| offer.max_seq_len = n;
        let set_batch: Set = |offer, n| offer.max_batch_size = n;
        let set_tokens: Set = |offer, n| offer.n_tokens = n;
        let set_sharers: Set = |offer, n| offer.sharers = n;
        let longest = u32::MAX as usize;
        for (set, what, most) in [
            (set_length, "max_seq_len", longest),
            (set_batch, "max_batch_size", longest),
            (set_tokens, "a number of tokens of", longest),
            (set_sharers, "a number of sharers of", MAX_RANKS),
        ] {
            let read = |n| {
                let mut offer = an_offer();
                set(&mut offer, n);
                Offer::read(&sent(|m| offer.write(m), Kind::Options))
            };
            read(1).unwrap();
            read(most).unwrap();
            for n in [0, most + 1, usize::MAX] {
                let error = read(n).unwrap_err();
                assert_eq!(error.kind(), crate::error::Kind::Peer);
                let expected = format!("a message with {what} {n}, expected 1 to {most}");
                assert_eq!(error.to_string(), expected);
            }
        }
    }

    #[test]
    fn another_page_size_is_named_with_both_values() {
        let ready = |page: usize| sent(|m| m.size(page), Kind::Ready);
        check_page(&ready(4096), 4096, "rank 1 of 2").unwrap();
        let error = check_page(&ready(usize::MAX), 4096, "rank 1 of 2 (there)").unwrap_err();
        assert_eq!(error.kind(), crate::error::Kind::Peer);
        assert_eq!(
            error.to_string(),
            "rank 1 of 2 (there) has pages of 18446744073709551615 bytes, rank 0 expects 4096"
        );
    }

    fn found(fingerprint: u64, needed: u64) -> Found {
        Found {
            on_gpu: false,
            fingerprint,
            path: "models/a".into(),
            needed,
            weight_bytes: needed / 2,
            kv_bytes: 1,
            available: 100,
            device_name: "a processor".into(),
        }
    }

    #[test]
    fn another_checkpoint_is_named_with_both_values() {
        let message = sent(|m| found(1, 2).write(m), Kind::Plan);
        let other = Found::read(&message).unwrap();
        assert_eq!(other, found(1, 2));
        other.check_same(&found(1, 5), "rank 1 of 2").unwrap();
        let error = other
            .check_same(&found(2, 2), "rank 1 of 2 (there)")
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "rank 1 of 2 (there) has another checkpoint: models/a has the fingerprint \
             0000000000000001, and models/a of rank 0 has 0000000000000002"
        );
    }

    fn on(host: &str, processors: &[usize]) -> Hello {
        Hello {
            host: host.into(),
            pid: 1,
            processors: processors.to_vec(),
        }
    }

    #[test]
    fn ranks_share_the_room_and_the_processors_of_a_machine() {
        let hellos = [
            on("a", &[0, 1]),
            on("b", &[0, 1]),
            on("a", &[1]),
            on("a", &[2]),
        ];
        let sharers: Vec<usize> = hellos.iter().map(|h| h.sharers(&hellos)).collect();
        assert_eq!(sharers, [2, 1, 2, 1]);
        let names: Vec<String> = (0..4).map(|rank| format!("rank {rank} of 4")).collect();
        let all = |needed: [u64; 4]| needed.map(|n| found(0, n));
        check_room(&hellos, &all([50, 100, 30, 20]), &names).unwrap();
        let error = check_room(&hellos, &all([50, 100, 30, 21]), &names).unwrap_err();
        assert!(
            error.to_string().starts_with(
                "rank 3 of 4, with the ranks before it on its machine, needs 101 bytes, 100 bytes \
                 are available"
            ),
            "{error}"
        );
    }
}
