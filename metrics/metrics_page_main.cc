// Prints docs/metrics.md: cox_metrics_page > docs/metrics.md
#include <cstdio>

#include "metrics/catalogue.h"

int main() {
  std::fputs(cox::metrics::catalogue_page().c_str(), stdout);
}
