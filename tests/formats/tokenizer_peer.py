"""tokenizer_peer.py SEED N TOKENIZER: N random texts, each with the ids that the library gives it,
as JSON lines.

TOKENIZER is a tokenizer.json (PyPI's tokenizers) or a tokenizer.model of ranks (tiktoken). Added
tokens are not parsed.
"""
import sys, json, random, base64
seed,n,path=int(sys.argv[1]),int(sys.argv[2]),sys.argv[3]
rnd=random.Random(seed)
if path.endswith('.model'):
    import tiktoken
    RX=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    r={base64.b64decode(a):int(b) for a,b in (l.split() for l in open(path))}
    t=tiktoken.Encoding('x',pat_str=RX,mergeable_ranks=r,special_tokens={}); enc=lambda xs:[t.encode_ordinary(x) for x in xs]
else:
    from tokenizers import Tokenizer
    j=json.load(open(path)); j['added_tokens']=[]; j['post_processor']=None
    t=Tokenizer.from_str(json.dumps(j)); enc=lambda xs:[e.ids for e in t.encode_batch(xs,add_special_tokens=False)]
POOL=[chr(c) for c in range(32,127)]+list(' \n\t\r')*8+list("''''sStTrevlLdm")+list('éüßñøÀ中文字的是привет한국日本語あア١٢½²№€—“”\u0301\u0308\u00a0\u2003\u200b\u3000😀🎉👍🏽\u200d\u0085\u2028ǅʰⅧ')
WORDS='the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were when we there can an your which their said if do will each about how up out them then she many some so these would other into has more her two like him see time could no make than first been its who now people my made over did down only way find use may water long little very after words called just where most know self return def class import print None True for x in range'.split()
def text():
    k=rnd.random()
    if k<.5: return ''.join(rnd.choice(POOL) for _ in range(rnd.randint(0,30)))
    if k<.8: return ''.join(rnd.choice(WORDS)+rnd.choice([' ',' ',' ','  ','\n','\n\n',"'s ",', ','. ','1','22 ','(',')','_','    ','\t']) for _ in range(rnd.randint(1,12)))
    return ''.join(chr(rnd.choice([rnd.randint(0x4e00,0x9fff),rnd.randint(0x400,0x45f),rnd.randint(0xac00,0xd7a3),rnd.randint(0x600,0x65f),rnd.randint(0x20,0x7e),rnd.randint(0xa0,0x24f),rnd.randint(0x1f300,0x1f5ff)])) for _ in range(rnd.randint(1,16)))
for i in range(0,n,5000):
    xs=[text() for _ in range(min(5000,n-i))]
    for x,ids in zip(xs,enc(xs)): print(json.dumps([x,ids]))
