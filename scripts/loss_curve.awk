# Draws the loss curve of a metrics file (one JSON object per step) as an SVG.
#   awk -f scripts/loss_curve.awk [-v unigram=X] [-v bigram=Y] [-v valid=Z] metrics.jsonl > loss.svg
# Grey: every step; blue: running mean; dashed: what counting words, or pairs of words, reaches on the validation part.

function number(name,    rest) {
  if (!match($0, "\"" name "\" *: *")) return ""
  rest = substr($0, RSTART + RLENGTH)
  return match(rest, /^-?[0-9.]+([eE][-+]?[0-9]+)?/) ? substr(rest, 1, RLENGTH) + 0 : ""
}

{
  loss = number("lm_loss")
  if (loss != "") { n++; at[n] = number("iteration"); y[n] = loss; if (loss > top) top = loss }
}

function px(iteration) { return left + (right - left) * (iteration - at[1]) / (at[n] > at[1] ? at[n] - at[1] : 1) }
function py(value) { return bottom - (bottom - above) * (value - low) / (high - low) }
function level(value, name, color) {
  if (value == "") return
  printf "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='%s' stroke-dasharray='6 4'/>\n", left, right, py(value), py(value), color
  printf "<text x='%d' y='%.1f' text-anchor='end' fill='%s'>%s %.3f</text>\n", right - 4, py(value) - 5, color, name, value
}

END {
  if (n == 0) { print "loss_curve: no lm_loss in the metrics" > "/dev/stderr"; exit 1 }
  left = 56; right = 880; above = 24; bottom = 430
  low = y[1]
  for (i = 1; i <= n; i++) if (y[i] < low) low = y[i]
  if (valid != "" && valid + 0 < low) low = valid + 0
  if (unigram != "" && unigram + 0 > top) top = unigram + 0
  low = int(low); high = int(top) + 1

  print "<svg xmlns='http://www.w3.org/2000/svg' width='920' height='480' font-family='sans-serif' font-size='13'>"
  print "<rect width='920' height='480' fill='white'/>"
  for (v = low; v <= high; v++) {
    printf "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='#e4e4e4'/>\n", left, right, py(v), py(v)
    printf "<text x='%d' y='%.1f' text-anchor='end' fill='#555'>%d</text>\n", left - 8, py(v) + 4, v
  }
  for (i = 0; i <= 4; i++) {
    step = at[1] + (at[n] - at[1]) * i / 4
    printf "<text x='%.1f' y='%d' text-anchor='middle' fill='#555'>%d</text>\n", px(step), bottom + 20, step
  }
  printf "<text x='%d' y='%d' text-anchor='middle' fill='#555'>step</text>\n", (left + right) / 2, bottom + 40
  printf "<text x='%d' y='%d' fill='#555'>loss, nats per token</text>\n", left, above - 8

  printf "<polyline fill='none' stroke='#b8b8b8' points='"
  for (i = 1; i <= n; i++) printf "%.1f,%.1f ", px(at[i]), py(y[i])
  print "'/>"
  printf "<polyline fill='none' stroke='#1f5fbf' stroke-width='2' points='"
  for (i = 1; i <= n; i++) {
    mean = i == 1 ? y[1] : 0.9 * mean + 0.1 * y[i]
    printf "%.1f,%.1f ", px(at[i]), py(mean)
  }
  print "'/>"
  level(unigram, "unigram", "#b06000"); level(bigram, "bigram", "#8030a0"); level(valid, "validation", "#107030")
  print "</svg>"
}
