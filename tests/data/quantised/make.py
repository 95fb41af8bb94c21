#!/usr/bin/env python3
"""A tiny Llama quantised as other programs store it; logits of the dequantised weights in float32:
make.py OUT SEED [AUTO_GPTQ AUTOAWQ]
torch 2.15.0, transformers 5.23.0; bitsandbytes 0.50.2 and compressed-tensors 0.20.0 do their own
packing; GPTQ and AWQ are packed here, and compared with auto-gptq 0.7.1 and autoawq 0.2.9 where
their sources' folders are given."""
import sys, json, random, shutil
from pathlib import Path
sys.path.insert(0,str(Path(__file__).resolve().parent.parent/"families")); from tiny import *
import transformers as tf
from safetensors.torch import save_file
OUT=Path(sys.argv[1]); SEED=int(sys.argv[2]); OUT.mkdir(parents=True,exist_ok=True)
TOK=Path(__file__).resolve().parent.parent/'families'/'tokenizer.model'; shutil.copy(TOK,OUT/'tokenizer.model')
H,F=(64,128) if SEED==1 else (128,64)
CFG=dict(vocab_size=300,hidden_size=H,intermediate_size=F,num_hidden_layers=2 if SEED==1 else 1,num_attention_heads=4,num_key_value_heads=2,max_position_embeddings=128,rms_norm_eps=1e-5,bos_token_id=1,eos_token_id=2,tie_word_embeddings=True,attn_implementation='eager')
MODS=['self_attn.q_proj','self_attn.k_proj','self_attn.v_proj','self_attn.o_proj','mlp.gate_proj','mlp.up_proj','mlp.down_proj']
def rtn(w,g,bits,sym):
    """Round to nearest: codes, scales [n, groups] f16, zeros."""
    n,k=w.shape; x=w.reshape(n,k//g,g); top=2**bits-1
    if sym: s=(x.abs().amax(-1)/(2**(bits-1)-0.5)).half().float(); z=torch.full_like(s,2**(bits-1))
    else:
        lo,hi=x.amin(-1).clamp(max=0),x.amax(-1).clamp(min=0); s=((hi-lo)/top).half().float(); z=(-lo/s).round().clamp(0,top)
    q=(x/s[...,None]+z[...,None]).round().clamp(0,top); return q.reshape(n,k).int(),s,z.int()
def pack_rows(q,bits):
    """[n, k] codes -> I32 [k*bits/32, n]: a stream of bits along k, lowest first."""
    k=q.shape[1]; words=torch.zeros(k*bits//32,q.shape[0],dtype=torch.int64)
    for i in range(k):
        b=i*bits
        for j in range(bits):
            words[(b+j)//32]|=((q[:,i].long()>>j)&1)<<((b+j)%32)
    return torch.where(words>=2**31,words-2**32,words).int()
def gptq(w,bits,g,sym,order,v2,r):
    n,k=w.shape; idx=torch.arange(k)//g
    if order:
        perm=torch.randperm(k,generator=r); inv=torch.empty_like(perm); inv[perm]=torch.arange(k); q,s,z=rtn(w[:,perm],g,bits,sym); q=q[:,inv]; idx=(torch.arange(k)//g)[inv]
    else: q,s,z=rtn(w,g,bits,sym)
    stored=z if v2 else (z-1)&(2**bits-1)
    t={'qweight':pack_rows(q,bits),'qzeros':pack_rows(stored.t(),bits).t().contiguous(),'scales':s.t().contiguous().half(),'g_idx':idx.int()}
    return t,(q-z[:,idx])*s[:,idx]
AWQ=[0,2,4,6,1,3,5,7]
def pack_awq(x):
    x=x.long().reshape(x.shape[0],-1,8); w=sum(x[...,AWQ[i]]<<(4*i) for i in range(8)); return torch.where(w>=2**31,w-2**32,w).int()
def awq(w,g):
    q,s,z=rtn(w,g,4,False); t={'qweight':pack_awq(q.t()),'qzeros':pack_awq(z.t()),'scales':s.t().contiguous().half()}
    return t,(q-z.repeat_interleave(g,1))*s.repeat_interleave(g,1)
def check(base):
    if len(sys.argv)<5: return
    import types, importlib.util
    def mod(p,name):
        spec=importlib.util.spec_from_file_location(name,p); m=importlib.util.module_from_spec(spec); spec.loader.exec_module(m); return m
    G=mod(f'{sys.argv[3]}/auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py','qg')
    src=open(f'{sys.argv[4]}/awq/modules/linear/gemm.py').read(); i=src.index('    def from_linear'); j=src.index('    def forward',i)
    w=base['model.layers.0.mlp.up_proj.weight'].float()
    for bits,g,sym in ((4,32,True),(4,64,False),(8,32,True),(3,32,True)):
        w3=torch.randn(96,96) if bits==3 else w
        q,s,z=rtn(w3,g,bits,sym); zz=z.clone().clamp(min=1); L=torch.nn.Linear(w3.shape[1],w3.shape[0],bias=False); L.weight.data=(q-zz.repeat_interleave(g,1))*s.repeat_interleave(g,1)
        m=G.QuantLinear(bits,g,w3.shape[1],w3.shape[0],False); m.pack(L,s.clone(),zz.float(),None)
        assert torch.equal(m.qweight,pack_rows(q,bits)),(bits,'qweight'); assert torch.equal(m.qzeros,pack_rows((zz-1).t(),bits).t()),(bits,'qzeros')
    class C: pass
    ns={'torch':torch,'get_best_device':lambda:'cpu'}; exec('class X:\n    @classmethod\n'+src[i:j],ns)
    class Lin:
        def __init__(s,w_bit,g,i,o,b,d): s.w_bit=w_bit; s.in_features=i; s.out_features=o
    Y=type('Y',(Lin,ns['X']),{}); q,s,z=rtn(w,32,4,False); L=torch.nn.Linear(w.shape[1],w.shape[0],bias=False); L.weight.data=(q-z.repeat_interleave(32,1))*s.repeat_interleave(32,1)
    m=Y.from_linear(L,4,32,scales=s.t().contiguous(),zeros=z.t().contiguous()); assert torch.equal(m.qweight,pack_awq(q.t())) and torch.equal(m.qzeros,pack_awq(z.t())); print('packing equals auto-gptq and autoawq')
def f8(x): return x.to(torch.float8_e4m3fn)
res={}
SMALL=dict(CFG,hidden_size=32,intermediate_size=64,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=2)
def make(name,qc,fn,seed,CFG=CFG):
    d=OUT/name; shutil.rmtree(d,ignore_errors=True); d.mkdir(); cfg=tf.LlamaConfig(**CFG); m=init(tf.LlamaForCausalLM(cfg),seed).half().eval(); base=m.state_dict(); r=torch.Generator().manual_seed(seed); out={}; deq={}
    for k,v in base.items():
        mod=k.removesuffix('.weight')
        if any(mod.endswith(x) for x in MODS):
            t,w=fn(v.float(),r,mod)
            for s,x in t.items(): out[f'{mod}.{s}']=x.contiguous()
            deq[k]=w.float()
        elif k!='lm_head.weight': out[k]=v; deq[k]=v.float()
    save_file(out,d/'model.safetensors',metadata={'format':'pt'})
    c=json.loads(cfg.to_json_string()); c.update(architectures=['LlamaForCausalLM'],quantization_config=qc,torch_dtype='float16'); json.dump(c,open(d/'config.json','w'),indent=1)
    m=tf.LlamaForCausalLM(cfg).float().eval(); miss=m.load_state_dict(deq,strict=False); assert all('lm_head' in x for x in miss.missing_keys) and not miss.unexpected_keys,miss; m.tie_weights()
    res[name]=dict(max_seq_len=64,cases=cases(m,seed,(4,13,24))); err=sum(((deq[k]-base[k].float())**2).sum() for k in deq if 'proj' in k)/sum((base[k].float()**2).sum() for k in deq if 'proj' in k)
    print(name,sum(f.stat().st_size for f in d.iterdir()),'relative error %.4f'%err.sqrt(),[c['gap'] for c in res[name]['cases']],flush=True); return base
g=lambda bits,gs,sym,order=False,v2=False: (dict(quant_method='gptq',bits=bits,group_size=gs,sym=sym,desc_act=order,checkpoint_format='gptq_v2' if v2 else 'gptq',damp_percent=0.01,true_sequential=True,lm_head=False), lambda w,r,m: gptq(w,bits,gs if gs>0 else w.shape[1],sym,order,v2,r))
S=SEED*50
L=[('gptq-sym-g32',*g(4,32,True)),('gptq-asym-g64',*g(4,64,False)),('gptq-act-order',*g(4,32,True,True)),('gptq-v2',*g(4,-1,True,False,True)),('gptq-8bit',*g(8,32,True))] if SEED==1 else [('h-gptq-sym',*g(4,64,True)),('h-gptq-order-asym',*g(4,32,False,True))]
base=None
for i,(n,qc,fn) in enumerate(L): base=make(n,qc,fn,S+i)
# says v1, stores v2: the data tell
if SEED==1: qc,fn=g(4,32,True,False,True); qc['checkpoint_format']='gptq'; make('gptq-v2-as-v1',qc,fn,S+9)
make('awq-g32' if SEED==1 else 'h-awq',dict(quant_method='awq',bits=4,group_size=32 if SEED==1 else 64,zero_point=True,version='gemm',modules_to_not_convert=None),lambda w,r,m: awq(w,32 if SEED==1 else 64),S+10)
import bitsandbytes.functional as BF
def bnb4(kind,nested,size=64):
    def f(w,r,m):
        q,s=BF.quantize_4bit(w.half(),blocksize=size,compress_statistics=nested,quant_type=kind); t={'weight':q}; t.update({'weight.'+k:v for k,v in s.as_dict(packed=True).items()})
        if size<=w.shape[1]: return t,BF.dequantize_4bit(q,s).float()
        # bitsandbytes 0.50.2 decodes blocks that are longer than a row wrongly on CPUs: by the
        # format's definition, rounded as there
        c=torch.stack((q.reshape(-1)>>4,q.reshape(-1)&15),1).reshape(-1).long(); return t,(s.code[c].reshape(-1,size)*s.absmax[:,None]).reshape(w.shape).half().float()
    return f
def bc(kind,nested): return dict(quant_method='bitsandbytes',_load_in_4bit=True,_load_in_8bit=False,load_in_4bit=True,load_in_8bit=False,bnb_4bit_quant_type=kind,bnb_4bit_use_double_quant=nested,bnb_4bit_compute_dtype='bfloat16',bnb_4bit_quant_storage='uint8',llm_int8_enable_fp32_cpu_offload=False,llm_int8_has_fp16_weight=False,llm_int8_skip_modules=None,llm_int8_threshold=6.0)
make('bnb-nf4' if SEED==1 else 'h-bnb-nf4',bc('nf4',True),bnb4('nf4',True),S+11)
if SEED==1: make('bnb-fp4',bc('fp4',False),bnb4('fp4',False),S+12)
def bnb8(w,r,m):
    q,s,_=BF.int8_vectorwise_quant(w.half()) if hasattr(BF,'int8_vectorwise_quant') else (None,)*3
    return {'weight':q,'SCB':s.float(),'weight_format':torch.tensor(0,dtype=torch.uint8)},q.float()*s.float()[:,None]/127
try: make('bnb-int8' if SEED==1 else 'h-bnb-int8',dict(bc('fp4',False),_load_in_4bit=False,_load_in_8bit=True,load_in_4bit=False,load_in_8bit=True),bnb8,S+13)
except Exception as e: print('bnb-int8:',repr(e)[:200])
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
def ct(fmt,w): return dict(quant_method='compressed-tensors',format=fmt,quantization_status='compressed',global_compression_ratio=None,ignore=['lm_head'],kv_cache_scheme=None,sparsity_config={},config_groups={'group_0':{'targets':['Linear'],'input_activations':None,'output_activations':None,'weights':w}})
ws=lambda **k: dict(dict(num_bits=4,type='int',symmetric=True,group_size=32,strategy='group',block_structure=None,dynamic=False,actorder=None,observer='minmax',observer_kwargs={}),**k)
def ctpack(sym,gs):
    def f(w,r,m):
        q,s,z=rtn(w,gs,4,sym); t={'weight_packed':pack_to_int32((q-8).to(torch.int8),4),'weight_scale':s.bfloat16() if False else s.half(),'weight_shape':torch.tensor(list(w.shape),dtype=torch.int64)}
        if not sym: t['weight_zero_point']=pack_to_int32((z-8).to(torch.int8),4,packed_dim=0)
        return t,(q-z.repeat_interleave(gs,1))*s.repeat_interleave(gs,1)
    return f
make('ct-pack-sym' if SEED==1 else 'h-ct-pack',ct('pack-quantized',ws(group_size=32 if SEED==1 else 64)),ctpack(True,32 if SEED==1 else 64),S+14)
if SEED==1: make('ct-pack-asym',ct('pack-quantized',ws(symmetric=False)),ctpack(False,32),S+15)
def ctint(w,r,m): s=(w.abs().amax(1,keepdim=True)/127).bfloat16(); q=(w/s.float()).round().clamp(-128,127); return {'weight':q.to(torch.int8),'weight_scale':s},q*s.float()
def ctf8(w,r,m): s=(w.abs().amax(1,keepdim=True)/448).bfloat16(); q=f8((w/s.float()).clamp(-448,448)); return {'weight':q,'weight_scale':s},q.float()*s.float()
if SEED==1: make('ct-int8',ct('int-quantized',ws(num_bits=8,group_size=None,strategy='channel')),ctint,S+16)
make('ct-fp8' if SEED==1 else 'h-ct-fp8',ct('float-quantized',ws(num_bits=8,type='float',group_size=None,strategy='channel')),ctf8,S+17)
def fb(w,r,m): s=(w.abs().amax(1,keepdim=True)/448); q=f8((w/s).clamp(-448,448)); return {'weight':q,'weight_scale':s,'input_scale_ub':torch.tensor([1200.0])},q.float()*s
if SEED==1: make('fbgemm-fp8',dict(quant_method='fbgemm_fp8',activation_scale_ub=1200.0,modules_to_not_convert=['lm_head']),fb,S+18)
def blk(w,r,m):
    n,k=w.shape; B=128 if SEED==1 else 32; nb,kb=-(-n//B),-(-k//B); s=torch.zeros(nb,kb)
    for i in range(nb):
        for j in range(kb): s[i,j]=w[i*B:(i+1)*B,j*B:(j+1)*B].abs().max()/448
    S_=s.repeat_interleave(B,0)[:n].repeat_interleave(B,1)[:,:k]; q=f8((w/S_).clamp(-448,448)); return {'weight':q,'weight_scale_inv':s},q.float()*S_
make('fp8-blocks' if SEED==1 else 'h-fp8-blocks',dict(quant_method='fp8',fmt='e4m3',activation_scheme='dynamic',weight_block_size=[128,128] if SEED==1 else [32,32],modules_to_not_convert=['lm_head']),blk,S+19)
if SEED==1: # what is left of docs/quantisation.md's table, as small as it can be
    for i,(name,*of) in enumerate((('gptq-2bit',2,32,False),('gptq-3bit',3,32,True),('gptq-8bit-asym',8,32,False),('gptq-g16',4,16,True))): make(name,*g(*of),S+20+i,SMALL)
    def ctpack8(w,r,m):
        q,s,z=rtn(w,32,8,True); return {'weight_packed':pack_to_int32((q-128).to(torch.int8),8),'weight_scale':s.half(),'weight_shape':torch.tensor(list(w.shape),dtype=torch.int64)},(q-128)*s.repeat_interleave(32,1)
    make('ct-pack-8bit',ct('pack-quantized',ws(num_bits=8)),ctpack8,S+24,SMALL)
    make('bnb-nf4-b128',bc('nf4',False),bnb4('nf4',False,128),S+25,SMALL)
    def whole(w,r,m): s=w.abs().max()/448; q=f8((w/s).clamp(-448,448)); return {'weight':q,'weight_scale':s,'input_scale':torch.tensor(0.02)},q.float()*s
    make('fp8-tensor',dict(quant_method='fp8',activation_scheme='static',ignored_layers=['lm_head']),whole,S+26,SMALL)
check(base); dump(OUT/'cases.json',res)
