// What the stand-in device counts, in this process.
#pragma once

#include <atomic>
#include <cstdint>

namespace standin {

struct Counters {
  std::atomic<int64_t> synchronizations{0};  // the host waited for the device
  std::atomic<int64_t> to_host{0};           // copies
  std::atomic<int64_t> to_device{0};
  std::atomic<int64_t> to_host_bytes{0};
  std::atomic<int64_t> to_device_bytes{0};
};

Counters& counters();

// Calls `report(what)` for each counted event, so that a test finds the line that causes it.
using Report = void (*)(const char* what);
extern std::atomic<Report> report;

void count_synchronization(const char* what);

// Whether this process was forked from one that had used the device.
extern std::atomic<bool> bad_fork;

}  // namespace standin
