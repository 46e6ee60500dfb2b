"""How the page looks, by day and by night."""

STYLE = """
:root { --ink:#1d232d; --dim:#667080; --paper:#fbfbf9; --card:#ffffff; --line:#e3e5e8; color-scheme:light dark; }
@media (prefers-color-scheme: dark) { :root { --ink:#e8eaee; --dim:#98a1b0; --paper:#14171c; --card:#1c2027; --line:#323845; } }
* { box-sizing:border-box; }
body { margin:0; background:var(--paper); color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif; }
main { max-width:1120px; margin:0 auto; padding:36px 40px 64px; }
h1 { font-size:30px; margin:0; letter-spacing:-0.01em; }
h2 { font-size:18px; margin:44px 0 12px; }
h3 { font-size:14px; margin:0 0 2px; }
header p { margin:2px 0 0; overflow-wrap:anywhere; }
.place { font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; font-size:13px; }
.dim, figcaption { color:var(--dim); font-size:13px; }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(180px,1fr)); gap:12px; margin:24px 0 16px; }
.tile { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:14px 16px; display:flex; flex-direction:column; }
.tile strong { font-size:22px; line-height:1.3; font-variant-numeric:tabular-nums; }
.tile.hero strong { font-size:34px; line-height:1.15; color:#2a9d6f; }
figure { margin:0; }
figcaption { margin-top:6px; max-width:760px; }
svg { display:block; width:100%; height:auto; }
svg text.tick { font-size:12px; fill:var(--dim); font-variant-numeric:tabular-nums; }
svg text.mid { text-anchor:middle; } svg text.end { text-anchor:end; }
svg .axis { stroke:var(--line); } svg .grid { stroke:var(--line); stroke-width:1; }
svg .restart { stroke:var(--dim); stroke-width:1; stroke-dasharray:3 4; }
svg .curve { fill:none; stroke-width:1.8; stroke-linejoin:round; }
svg rect { shape-rendering:geometricPrecision; }
.wide { overflow-x:auto; }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; }
th { color:var(--dim); font-weight:500; font-size:13px; }
th, td { padding:5px 10px 5px 0; border-bottom:1px solid var(--line); vertical-align:top; white-space:nowrap; }
.n { text-align:right; } .w { text-align:left; }
td .cause { white-space:normal; overflow-wrap:anywhere; }
.badge { color:#fff; border-radius:9px; padding:1px 9px; font-size:12.5px; }
.swatch { display:inline-block; width:11px; height:11px; border-radius:3px; margin-right:7px; vertical-align:-1px; }
.bar { display:inline-block; height:11px; border-radius:2px; vertical-align:-1px; }
.charts { display:grid; grid-template-columns:repeat(auto-fit,minmax(430px,1fr)); gap:18px; }
.chart { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:14px 16px 8px; }
.keys { display:flex; flex-wrap:wrap; gap:2px 14px; font-size:12.5px; color:var(--dim); margin-bottom:6px; }
.pictures { display:grid; grid-template-columns:repeat(auto-fill,minmax(230px,1fr)); gap:16px; }
.pictures img { width:100%; height:auto; image-rendering:pixelated; border:1px solid var(--line); border-radius:6px; }
summary { cursor:pointer; color:var(--dim); }
@media print { main { max-width:none; padding:0; } section { break-inside:avoid; } }
"""
