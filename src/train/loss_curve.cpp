#include "train/loss_curve.hpp"

#include <algorithm>
#include <cmath>

#include "core/check.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

using Points = std::vector<LossCurve::Point>;

// The picture and the plot inside it, in SVG units.
constexpr double kWidth = 960, kHeight = 540;
constexpr double kLeft = 72, kRight = 888, kTop = 94, kBottom = 476;
constexpr std::size_t kMostDots = 800;

// Colours are given twice: viewers that know no dark mode show the first set on its own white ground.
constexpr const char* kStyle = R"(<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #52514e }
.ground { fill: #fcfcfb }
.title { font-size: 18px; font-weight: 600; fill: #0b0b0b }
.strong { fill: #0b0b0b; font-weight: 600 }
.grid { stroke: #e6e5e1; stroke-width: 1 }
.axis { stroke: #b9b8b2; stroke-width: 1 }
.dot { fill: #2a78d6; fill-opacity: 0.28 }
.train { stroke: #2a78d6; stroke-width: 2.25; fill: none; stroke-linejoin: round; stroke-linecap: round }
.validation { stroke: #c2410c; stroke-width: 1.75; fill: none; stroke-linejoin: round }
.marker { fill: #c2410c; stroke: #fcfcfb; stroke-width: 1.5 }
.lr { stroke: #8a8980; stroke-width: 1.25; stroke-opacity: 0.7; stroke-dasharray: 1 3; stroke-linecap: round; fill: none }
.baseline { stroke: #6b6a64; stroke-width: 1.25; stroke-dasharray: 6 4 }
.halo { fill: #fcfcfb; fill-opacity: 0.85 }
.end { text-anchor: end }
.middle { text-anchor: middle }
@media (prefers-color-scheme: dark) {
text { fill: #c3c2b7 }
.ground { fill: #1a1a19 }
.title, .strong { fill: #ffffff }
.grid { stroke: #30302d }
.axis { stroke: #55544f }
.dot { fill: #5a9ff0 }
.train { stroke: #5a9ff0 }
.validation { stroke: #f59158 }
.marker { fill: #f59158; stroke: #1a1a19 }
.lr { stroke: #8f8e86 }
.baseline { stroke: #9b9a92 }
.halo { fill: #1a1a19 }
}
</style>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

// A step of 1, 2 or 5 times a power of ten that cuts `span` into about `count` parts.
double tick_step(double span, int count) {
  const double raw = span / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double unit : {1.0, 2.0, 5.0}) {
    if (raw <= unit * power * 1.0001) return unit * power;
  }
  return 10 * power;
}

std::string thousands(std::int64_t n) {
  std::string digits = fmt::format("{}", n);
  for (auto i = static_cast<std::int64_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), " ");
  }
  return digits;
}

// Means of equal ranges, so that no more than `most` points remain.
Points thinned(const Points& points, std::size_t most) {
  if (points.size() <= most) return points;
  Points out;
  for (std::size_t i = 0; i < most; ++i) {
    const std::size_t begin = i * points.size() / most, end = (i + 1) * points.size() / most;
    double sum = 0;
    for (std::size_t j = begin; j < end; ++j) sum += points[j].value;
    out.push_back({points[(begin + end - 1) / 2].iteration, sum / static_cast<double>(end - begin)});
  }
  return out;
}

// Centred means over up to 1/25 of the run, over less where it begins: there the curve is steep.
Points smoothed(const Points& points) {
  std::vector<double> sums = {0};
  for (const LossCurve::Point& p : points) sums.push_back(sums.back() + p.value);
  Points out = points;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t half = std::min(points.size() / 50, i / 4);
    const std::size_t begin = i - half, end = std::min(i + half + 1, points.size());
    out[i].value = (sums[end] - sums[begin]) / static_cast<double>(end - begin);
  }
  return out;
}

Points finite(Points points) {
  std::erase_if(points, [](const LossCurve::Point& p) { return !std::isfinite(p.value); });
  return points;
}

class Picture {
 public:
  explicit Picture(const LossCurve& curve)
      : curve_(curve),
        train_(finite(curve.train)),
        validation_(finite(curve.validation)),
        lr_(finite(curve.learning_rate)) {
    set_ranges();
  }

  std::string svg() {
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "role=\"img\" "
        "aria-label=\"{2}\">\n",
        kWidth, kHeight, escaped(curve_.title));
    out_ += kStyle;
    out_ += fmt::format("<rect class=\"ground\" width=\"{}\" height=\"{}\"/>\n", kWidth, kHeight);
    text(kLeft, 34, "title", curve_.title);
    if (!curve_.subtitle.empty()) text(kLeft, 56, "", curve_.subtitle);
    axes();
    learning_rate();
    const Points dots = thinned(train_, kMostDots);
    for (const LossCurve::Point& p : dots) {
      out_ +=
          fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"1.6\"/>\n", x(p), y(p.value));
    }
    baselines();
    polyline("train", thinned(smoothed(train_), kMostDots));
    polyline("validation", validation_);
    for (const LossCurve::Point& p : validation_) {
      out_ +=
          fmt::format("<circle class=\"marker\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>\n", x(p), y(p.value));
    }
    legend();
    return out_ + "</svg>\n";
  }

 private:
  void set_ranges() {
    std::vector<double> values;
    for (const Points* points : {&train_, &validation_}) {
      for (const LossCurve::Point& p : *points) {
        values.push_back(p.value);
        last_ = std::max(last_, p.iteration);
      }
    }
    for (const LossCurve::Baseline& b : curve_.baselines) values.push_back(b.loss);
    if (values.empty()) values = {0, 1};
    std::sort(values.begin(), values.end());
    low_ = values.front();
    high_ = values.back();
    // A few spikes must not squeeze the curve: they end at the upper edge.
    const double typical = values[(values.size() - 1) * 995 / 1000];
    if (values.size() > 50 && high_ - low_ > 3 * (typical - low_)) high_ = low_ + 1.5 * (typical - low_);
    if (high_ - low_ < 1e-6 * std::max(1.0, std::abs(high_))) {
      low_ -= 0.5;
      high_ += 0.5;
    }
    step_ = tick_step(high_ - low_, 6);
    low_ = std::floor(low_ / step_ + 1e-9) * step_;
    high_ = std::ceil(high_ / step_ - 1e-9) * step_;
  }

  double x(const LossCurve::Point& p) const {
    return kLeft + (kRight - kLeft) * static_cast<double>(p.iteration) /
                       static_cast<double>(std::max<std::int64_t>(last_, 1));
  }
  double y(double loss) const {
    return kBottom - (kBottom - kTop) * std::clamp((loss - low_) / (high_ - low_), 0.0, 1.0);
  }

  void text(double px, double py, const char* style, const std::string& content) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", px, py, style,
                        escaped(content));
  }
  void line(const char* style, double x0, double y0, double x1, double y1) {
    out_ += fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                        style, x0, y0, x1, y1);
  }
  void polyline(const char* style, const Points& points) {
    if (points.size() < 2) return;
    out_ += fmt::format("<polyline class=\"{}\" points=\"", style);
    for (const LossCurve::Point& p : points) out_ += fmt::format("{:.1f},{:.1f} ", x(p), y(p.value));
    out_ += "\"/>\n";
  }

  void axes() {
    const int digits = std::max(0, static_cast<int>(-std::floor(std::log10(step_) + 1e-9)));
    for (int i = 0; low_ + i * step_ <= high_ + 1e-9; ++i) {
      const double value = low_ + i * step_;
      line(i == 0 ? "axis" : "grid", kLeft, y(value), kRight, y(value));
      text(kLeft - 10, y(value) + 4.5, "end", fmt::format("{:.{}f}", value, digits));
    }
    const auto step = std::max<std::int64_t>(
        1, std::llround(tick_step(static_cast<double>(std::max<std::int64_t>(last_, 1)), 8)));
    for (std::int64_t i = 0; i <= last_; i += step) {
      const double px = x({i, 0});
      line("axis", px, kBottom, px, kBottom + 5);
      text(px, kBottom + 21, "middle", thousands(i));
    }
    text((kLeft + kRight) / 2, kBottom + 44, "middle", "step");
    text(kLeft - 10, kTop - 12, "end", "loss");
  }

  // On its own scale, from zero at the bottom to the peak at three quarters of the height; the peak is named
  // in the legend.
  void learning_rate() {
    for (const LossCurve::Point& p : lr_) peak_lr_ = std::max(peak_lr_, p.value);
    if (lr_.size() < 2 || peak_lr_ <= 0) return;
    out_ += "<polyline class=\"lr\" points=\"";
    for (const LossCurve::Point& p : thinned(lr_, kMostDots)) {
      out_ += fmt::format("{:.1f},{:.1f} ", x(p), kBottom - 0.75 * (kBottom - kTop) * p.value / peak_lr_);
    }
    out_ += "\"/>\n";
  }

  void baselines() {
    double above = -1e9;  // y of the label before: labels of near lines go below theirs
    std::vector<LossCurve::Baseline> sorted = curve_.baselines;
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.loss > b.loss; });
    for (const LossCurve::Baseline& b : sorted) {
      if (!std::isfinite(b.loss)) continue;
      line("baseline", kLeft, y(b.loss), kRight, y(b.loss));
      double py = y(b.loss) - 6;
      if (py - above < 16) py = y(b.loss) + 15;
      above = py;
      const std::string label = fmt::format("{} {:.3f}", b.label, b.loss);
      const double width = 7.2 * static_cast<double>(label.size()) + 8;
      out_ += fmt::format("<rect class=\"halo\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"16\"/>\n",
                          kRight - width, py - 12, width);
      text(kRight - 4, py, "end", label);
    }
  }

  // One row under the title, from the right: names of what is drawn, with the last values.
  void legend() {
    struct Entry {
      const char* style;
      std::string label;
    };
    std::vector<Entry> entries;
    if (!train_.empty()) {
      const Points line = smoothed(train_);
      entries.push_back({"train", fmt::format("training {:.3f}", line.back().value)});
    }
    if (!validation_.empty()) {
      entries.push_back({"validation", fmt::format("validation {:.3f}", validation_.back().value)});
    }
    if (peak_lr_ > 0) entries.push_back({"lr", fmt::format("learning rate (peak {:.3g})", peak_lr_)});
    double px = kRight;
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
      text(px, kTop - 12, "end", entry->label);
      px -= 6.6 * static_cast<double>(entry->label.size()) + 8;
      line(entry->style, px - 24, kTop - 16.5, px, kTop - 16.5);
      px -= 24 + 22;
    }
  }

  const LossCurve& curve_;
  Points train_, validation_, lr_;
  std::int64_t last_ = 0;
  double low_ = 0, high_ = 1, step_ = 1, peak_lr_ = 0;
  std::string out_;
};

}  // namespace

LossCurve loss_curve(const std::vector<StepMetrics>& steps, std::string title) {
  LossCurve curve;
  curve.title = std::move(title);
  for (const StepMetrics& m : steps) {
    if (!m.skipped) curve.train.push_back({m.iteration, m.lm_loss});
    curve.learning_rate.push_back({m.iteration, m.lr});
    if (m.validation_loss) curve.validation.push_back({m.iteration, *m.validation_loss});
  }
  return curve;
}

std::string loss_curve_svg(const LossCurve& curve) {
  return Picture(curve).svg();
}

void write_loss_curve(const std::filesystem::path& path, const LossCurve& curve) {
  write_file(path, loss_curve_svg(curve));
}

}  // namespace weft
