//! What the backend needs of a device, by calls of the driver. (U)
#![allow(unsafe_code)]

use super::context::{Owned, Pinned};
use super::graph::Graph;
use super::group::Group;
use super::{Cuda, Floats, Products, blaslt};
use crate::backend::Watch;
use crate::backend::gpu::device::{BOX, Device, Gate, Geometry, GroupId, Product, Rows, TensorMap};
use crate::backend::gpu::driver::sys::*;
use crate::backend::gpu::driver::{Driver, NO_COPY};
use crate::backend::gpu::kernels::Kernel;
use crate::backend::gpu::preflight::Found;
use crate::backend::gpu::room::Room;
use crate::{Error, Result};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ALREADY_ENABLED: u32 = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as u32;

// SAFETY: addresses come from the driver; everything is done in one stream, in order.
unsafe impl Device for Cuda {
    type Host = Floats;
    type Graph = Graph;

    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn name(&self) -> String {
        let Found { name, arch, driver } = &self.found;
        let (major, minor) = (driver / 1000, driver % 1000 / 10);
        format!(
            "{name}, compute capability {}.{}, CUDA {major}.{minor} driver",
            arch.0, arch.1
        )
    }

    fn ways(&self) -> Option<String> {
        let word = |on| if on { "on" } else { "off" };
        Some(format!(
            "kernels of PTX {}.{}, launches that start early {}, one carve-out {}, graphs {}, \
             steps ahead {}, kernels for 9.0 {}, clusters of them {}, tiles of a quarter {}",
            self.modules.ptx / 10,
            self.modules.ptx % 10,
            word(self.programmatic),
            word(self.modules.carved),
            word(self.records),
            word(self.runs_ahead),
            word(self.hopper),
            word(self.hopper && self.clusters),
            word(self.hopper && self.quarters)
        ))
    }

    fn available(&self) -> Result<u64> {
        let _current = self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current.
        unsafe { self.driver().cuMemGetInfo_v2(&mut free, &mut total) }?;
        Ok(free as u64)
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    fn quarters(&self) -> bool {
        self.quarters
    }

    fn room(&self) -> Room {
        self.room
    }

    fn own_bytes(&self) -> u64 {
        match &*self.products.lock().unwrap_or_else(|e| e.into_inner()) {
            Products::Library(_) => blaslt::WORKSPACE as u64,
            Products::Own | Products::Failed(_) => 0,
        }
    }

    fn give_up_library(&self) {
        let mut products = self.products.lock().unwrap_or_else(|e| e.into_inner());
        // The library works in memory that is freed with it.
        let _ = self.synchronize();
        *products = Products::Own;
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<u64> {
        let available = self.available()?;
        let _current = self.context.enter()?;
        let mut at = 0;
        // SAFETY: the context is current.
        match unsafe { self.driver().cuMemAlloc_v2(&mut at, bytes) } {
            Err(failed) if failed.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 => {
                Err(Error::DeviceMemory {
                    what: what.into(),
                    needed: bytes as u64,
                    available,
                })
            }
            outcome => Ok(outcome.map(|()| at)?),
        }
    }

    unsafe fn free(&self, at: u64) -> Result<()> {
        // The driver's reference does not promise that freeing waits for pending work. A wait that
        // a watch ends fails, but then the GPU has become idle, which the second one finds.
        self.synchronize().or_else(|_| self.synchronize())?;
        let _current = self.context.enter()?;
        // SAFETY: by this function's contract; nothing that uses it is in progress.
        Ok(unsafe { self.driver().cuMemFree_v2(at) }?)
    }

    fn host(&self, n: usize) -> Result<Floats> {
        let _current = self.context.enter()?;
        // Work may be under way. If one of both is refused, an event can be destroyed meanwhile,
        // but memory cannot be freed without waiting for it.
        let done = Owned::event(&self.context)?;
        Ok(Floats {
            memory: Pinned::new(&self.context, n.saturating_mul(4))?,
            done,
            context: self.context.clone(),
        })
    }

    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: by this function's contract.
        unsafe { self.driver().cuMemsetD8Async(at, 0, bytes, self.stream.raw) }?;
        Ok(())
    }

    unsafe fn write(&self, to: Rows, from: &[u8]) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: by this function's contract; the context is current.
        unsafe { self.staging.write(&self.context, self.stream.raw, to, from) }
    }

    unsafe fn copy(&self, to: Rows, from: u64, rows: usize) -> Result<()> {
        let _current = self.context.enter()?;
        let all = CUDA_MEMCPY2D {
            srcDevice: from,
            srcPitch: to.pitch,
            dstDevice: to.at,
            dstPitch: to.pitch,
            WidthInBytes: to.width,
            Height: rows,
            ..NO_COPY
        };
        let copy = |copy: CUDA_MEMCPY2D| {
            // SAFETY: by this function's contract.
            unsafe { self.driver().cuMemcpy2DAsync_v2(&copy, self.stream.raw) }
        };
        if to.pitch <= self.max_pitch {
            return Ok(copy(all)?);
        }
        // The layers of a large pool lie farther apart than the rows of a 2D copy may.
        for row in 0..rows {
            let offset = (row * to.pitch) as u64;
            copy(CUDA_MEMCPY2D {
                srcDevice: all.srcDevice + offset,
                srcPitch: to.width,
                dstDevice: all.dstDevice + offset,
                dstPitch: to.width,
                Height: 1,
                ..all
            })?;
        }
        Ok(())
    }

    unsafe fn read(&self, from: Rows, to: &mut [u8]) -> Result<()> {
        let _current = self.context.enter()?;
        // The copies below wait in the driver, where nothing watches over them.
        self.synchronize()?;
        // Copies row by row, because the layers of a large pool lie farther apart than the rows of
        // a 2D copy may.
        let rows = to.chunks_exact_mut(from.width).enumerate();
        let copied = rows.map(|(i, row)| {
            let (at, n) = (from.at + (i * from.pitch) as u64, row.len());
            // SAFETY: by this function's contract; `to` is not looked at before the stream is idle.
            unsafe {
                self.driver()
                    .cuMemcpyDtoHAsync_v2(row.as_mut_ptr().cast(), at, n, self.stream.raw)
            }
        });
        let copied = copied.collect::<std::result::Result<(), _>>();
        // Waits even if a copy has failed, because others may be in progress. SAFETY: the context
        // is current.
        let idle = unsafe { self.driver().cuStreamSynchronize(self.stream.raw) };
        copied?;
        Ok(idle?)
    }

    unsafe fn fetch(&self, to: &mut Floats, at: usize, from: u64, n: usize) -> Result<()> {
        let _current = self.context.enter()?;
        let stream = self.stream.raw;
        // SAFETY: the sizes are right by this function's contract, and nobody reads `to`, which
        // waits for the copy before it is dropped.
        unsafe {
            let at = to.memory.at.cast::<f32>().add(at).cast();
            self.driver()
                .cuMemcpyDtoHAsync_v2(at, from, 4 * n, stream)?;
            let recorded = self.driver().cuEventRecord(to.done.raw, stream);
            if recorded.is_err() {
                // Without the event, `to` would not wait for the copy.
                let _ = self.driver().cuStreamSynchronize(stream);
            }
            Ok(recorded?)
        }
    }

    fn wait(&self, host: &mut Floats) -> Result<()> {
        host.wait()
    }

    unsafe fn launch(&self, kernel: Kernel, geometry: Geometry, params: &[u8]) -> Result<()> {
        let _current = self.context.enter()?;
        let mut argument: *mut c_void = params.as_ptr().cast_mut().cast();
        use CUlaunchAttributeID as Id;
        let attribute = |id| CUlaunchAttribute {
            id,
            pad: [0; 4],
            value: CUlaunchAttributeValue { pad: [0; 64] },
        };
        let mut attributes = [
            attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
            attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION),
        ];
        attributes[0].value.programmaticStreamSerializationAllowed = 1;
        attributes[1].value.clusterDim.x = geometry.cluster;
        attributes[1].value.clusterDim.y = 1;
        attributes[1].value.clusterDim.z = 1;
        let early = geometry.dependent && self.programmatic;
        let clusters = self.clusters && geometry.cluster > 1;
        let attributes = &mut attributes[usize::from(!early)..1 + usize::from(clusters)];
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) =
            (geometry.grid, geometry.block);
        let config = CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: geometry.shared,
            hStream: self.stream.raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let Some(function) = self.modules.function(kernel) else {
            let name = kernel.name();
            return Err(Error::Internal(format!("this GPU has no kernel {name}")));
        };
        // SAFETY: the kernel has one argument. Its bytes and the configuration are copied during
        // the call. What the bytes point to is right by this function's contract.
        let outcome = unsafe {
            self.driver()
                .cuLaunchKernelEx(&config, function, &mut argument, ptr::null_mut())
        };
        outcome.map_err(|failed| Error::Device(format!("{}: {failed}", kernel.name())))
    }

    unsafe fn tensor_map(&self, of: Rows, rows: usize, box_rows: u32) -> Result<Option<TensorMap>> {
        if !self.hopper {
            return Ok(None);
        }
        // The call does nothing on the device, but r580 on an H100 refuses it without a context,
        // which the driver's reference does not say.
        let _current = self.context.enter()?;
        let mut map = TensorMap::default();
        let dimensions = [of.width as u64 / 2, rows as u64];
        let (strides, boxes, ones) = ([of.pitch as u64], [BOX[1], box_rows], [1; 2]);
        // SAFETY: the map has two dimensions. Each array has two numbers, except `strides`, which
        // has one. `TensorMap` has the size of CUtensorMap, and the alignment that CUDA 13 asks
        // for, which is stricter. All of it outlives the call, which reads nothing on the device.
        unsafe {
            self.driver().cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                2,
                ptr::without_provenance_mut(of.at as usize),
                dimensions.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                ones.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }?;
        Ok(Some(map))
    }

    unsafe fn product(&self, product: &Product) -> std::result::Result<(), Option<String>> {
        let mut products = self.products.lock().unwrap_or_else(|e| e.into_inner());
        let why = match &mut *products {
            Products::Own => return Err(None),
            Products::Library(library) => {
                let current = self.context.enter().map_err(|e| Some(e.to_string()))?;
                // SAFETY: by this function's contract; the context is current.
                let done = unsafe { library.run(product, self.stream.raw) };
                drop(current);
                match done {
                    Ok(()) => return Ok(()),
                    Err(why) => why,
                }
            }
            Products::Failed(why) => std::mem::take(why),
        };
        // The library works in memory that is freed with it.
        let _ = self.synchronize();
        *products = Products::Own;
        Err(Some(why))
    }

    fn records(&self) -> bool {
        self.records
    }

    fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    fn begin_capture(&self) -> Result<()> {
        let _current = self.context.enter()?;
        // In this mode only this thread is affected. Another thread, with a handle of its own, may
        // allocate memory meanwhile.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: our own stream.
        unsafe { self.driver().cuStreamBeginCapture_v2(self.stream.raw, mode) }?;
        self.recording.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn end_capture(&self) -> Result<Graph> {
        self.recording.store(false, Ordering::Relaxed);
        let _current = self.context.enter()?;
        let mut recorded = ptr::null_mut();
        // SAFETY: our own stream; `recorded` outlives the call.
        unsafe {
            self.driver()
                .cuStreamEndCapture(self.stream.raw, &mut recorded)
        }?;
        let graph = Owned::new(
            &self.context,
            // SAFETY: the graph was just made; `to` outlives the call.
            |driver, to| unsafe { driver.cuGraphInstantiateWithFlags(to, recorded, 0) },
            Driver::cuGraphExecDestroy,
        );
        // The instantiated graph does not need the recording. A failure to free it is ignored, as
        // elsewhere. SAFETY: ours, and nobody uses it after this.
        let _ = unsafe { self.driver().cuGraphDestroy(recorded) };
        let graph = graph?;
        // Uploading makes the graph take its memory now. Otherwise it would do so at its first
        // launch, and if that were refused, the step would fail. SAFETY: just made; our own stream.
        unsafe { self.driver().cuGraphUpload(graph.raw, self.stream.raw) }?;
        Ok(Graph::new(graph, self.context.group().as_ref()))
    }

    unsafe fn replay(&self, graph: &Graph) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: our own stream; the rest is by this function's contract.
        unsafe { graph.launch(self.driver(), self.stream.raw) }
    }

    fn synchronize(&self) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: our own stream.
        unsafe { self.context.wait_for_stream(self.stream.raw) }
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        self.context.watch(watch, self.stream.raw);
    }

    fn new_group(&self) -> std::result::Result<GroupId, String> {
        let id = self.context.nccl()?.unique_id()?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    fn can_join(&self) -> std::result::Result<(), String> {
        self.context.nccl().map(drop)
    }

    fn join(&self, id: &GroupId, rank: usize, ranks: usize) -> Result<String> {
        let _current = self.context.enter()?;
        let nccl = self.context.nccl().map_err(Error::Unsupported)?;
        let Some(watch) = self.context.watcher() else {
            return Err(Error::Internal("a group that nobody watches".into()));
        };
        *self.context.group() = Some(Group::join(nccl, id, rank, ranks, watch)?);
        let (major, minor, patch) = (
            nccl.version / 10_000,
            nccl.version % 10_000 / 100,
            nccl.version % 100,
        );
        Ok(format!("NCCL {major}.{minor}.{patch}"))
    }

    fn leave(&self) -> bool {
        match self.synchronize() {
            Ok(()) => self.context.leave(),
            Err(_) => self.context.give_up(),
        }
        !self.context.is_lost()
    }

    fn reach(&self, other: &Cuda) -> std::result::Result<(), String> {
        let [from, to] = [self.context.device, other.context.device];
        let _current = self.context.enter().map_err(|error| error.to_string())?;
        // Only connections by NVLink have them. By PCIe, many small reads are slower than copies.
        let atomics = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let access = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
        for (which, what) in [(access, "does not reach"), (atomics, "has no NVLink to")] {
            let mut has = 0;
            // SAFETY: `has` outlives the call; both devices are known.
            unsafe {
                self.driver()
                    .cuDeviceGetP2PAttribute(&mut has, which, from, to)
            }
            .map_err(|failed| failed.to_string())?;
            if has == 0 {
                return Err(format!("GPU {from} {what} GPU {to}"));
            }
        }
        // It stays on: other code of this process may have turned it on as well.
        // SAFETY: both contexts are retained.
        match unsafe { self.driver().cuCtxEnablePeerAccess(other.context.raw, 0) } {
            Err(failed) if failed.code == ALREADY_ENABLED => Ok(()),
            outcome => outcome.map_err(|failed| failed.to_string()),
        }
    }

    fn given_up(&self) -> Result<u64> {
        let mut given_up = self.given_up.lock().unwrap_or_else(|e| e.into_inner());
        let word = match given_up.take() {
            Some(word) => word,
            None => Pinned::new(&self.context, size_of::<u32>())?,
        };
        let word = given_up.insert(word);
        self.context.tell_kernels(word);
        Ok(word.at.addr() as u64)
    }

    fn keep_pace(&self) -> Result<()> {
        let _current = self.context.enter()?;
        self.pace()
    }

    unsafe fn all_gather(&self, to: u64, from: u64, n: usize) -> Result<()> {
        let _current = self.context.enter()?;
        self.in_group(|group, watch| {
            // SAFETY: by this function's contract.
            unsafe { group.all_gather(to, from, n, self.stream.raw, watch) }
        })
    }

    unsafe fn all_to_all(&self, to: u64, from: u64, n: usize) -> Result<()> {
        let _current = self.context.enter()?;
        self.in_group(|group, watch| {
            // SAFETY: by this function's contract.
            unsafe { group.all_to_all(to, from, n, self.stream.raw, watch) }
        })
    }
}
