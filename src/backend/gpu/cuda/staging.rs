//! Copies to the device through page-locked buffers. One is filled while others are being copied.
//! (U)
#![allow(unsafe_code)]

use super::context::{Context, Owned, Pinned};
use crate::Result;
use crate::backend::gpu::device::Rows;
use crate::backend::gpu::driver::NO_COPY;
use crate::backend::gpu::driver::sys::{CUDA_MEMCPY2D, CUevent_st, CUmemorytype, CUstream};
use std::ptr;
use std::sync::{Arc, Mutex};

/// Bytes of each buffer. It is so large that a copy takes longer than starting it, and so small
/// that the first copy starts soon.
const STAGE: usize = 2 << 20;

/// As many as a step has copies: of its rows, and of what they have of histories, edits and
/// adapters. They lie in the stream behind the step before, which may still run, so one that waited
/// for a buffer of another would wait for that step.
const STAGES: usize = 4;

/// A buffer, and an event that fires when the copy from it is done.
struct Stage {
    memory: Pinned,
    done: Owned<CUevent_st>,
}

/// The buffers, and the index of the one to fill next.
pub(super) struct Staging(Mutex<([Stage; STAGES], usize)>);

impl Staging {
    /// Allocates the buffers. The context must be current.
    pub fn new(context: &Arc<Context>) -> Result<Staging> {
        let stage = || -> Result<Stage> {
            Ok(Stage {
                memory: Pinned::new(context, STAGE)?,
                done: Owned::event(context)?,
            })
        };
        Ok(Staging(Mutex::new((
            [stage()?, stage()?, stage()?, stage()?],
            0,
        ))))
    }

    /// Copies rows, which lie end to end in `from`, to the device. `from` may be changed as soon as
    /// this returns.
    ///
    /// # Safety
    /// The context is current, the rows lie in live memory, and `from.len()` is a multiple of
    /// `to.width`.
    pub unsafe fn write(
        &self,
        context: &Context,
        stream: CUstream,
        to: Rows,
        from: &[u8],
    ) -> Result<()> {
        if to.width == to.pitch || to.width == from.len() {
            // The rows are one stretch of memory, which may be cut anywhere.
            for (i, bytes) in from.chunks(STAGE).enumerate() {
                let rows = Rows {
                    at: to.at + (i * STAGE) as u64,
                    width: bytes.len(),
                    pitch: bytes.len(),
                };
                // SAFETY: a part of the rows that the caller vouches for.
                unsafe { self.stage(context, stream, rows, bytes) }?;
            }
            return Ok(());
        }
        let piece = (STAGE / to.width).max(1) * to.width;
        for (i, rows) in from.chunks(piece).enumerate() {
            let at = to.at + (i * (piece / to.width) * to.pitch) as u64;
            // SAFETY: whole rows of those that the caller vouches for.
            unsafe {
                if piece <= STAGE {
                    self.stage(context, stream, Rows { at, ..to }, rows)?;
                } else {
                    let (width, pitch) = (rows.len(), rows.len());
                    self.write(context, stream, Rows { at, width, pitch }, rows)?;
                }
            }
        }
        Ok(())
    }

    /// Copies at most [`STAGE`] bytes.
    unsafe fn stage(
        &self,
        context: &Context,
        stream: CUstream,
        to: Rows,
        from: &[u8],
    ) -> Result<()> {
        let driver = &context.driver;
        let mut staging = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let (stages, next) = &mut *staging;
        let stage = &stages[*next];
        *next = (*next + 1) % STAGES;
        let (at, done) = (stage.memory.at, stage.done.raw);
        // SAFETY: before the buffer is filled again, the copy that used it is done (an event that
        // was never recorded counts as done), and `from` fits. The rows lie in live memory (the
        // caller's contract). The source is not touched before `done`.
        unsafe {
            context.wait_for_event(done)?;
            ptr::copy_nonoverlapping(from.as_ptr(), at, from.len());
            if to.width == from.len() {
                driver.cuMemcpyHtoDAsync_v2(to.at, at.cast(), from.len(), stream)?;
            } else {
                let copy = CUDA_MEMCPY2D {
                    srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
                    srcHost: at.cast(),
                    srcPitch: to.width,
                    dstDevice: to.at,
                    dstPitch: to.pitch,
                    WidthInBytes: to.width,
                    Height: from.len() / to.width,
                    ..NO_COPY
                };
                driver.cuMemcpy2DAsync_v2(&copy, stream)?;
            }
            driver.cuEventRecord(done, stream)?;
        }
        Ok(())
    }
}
