#include "sdk/src/session/termination.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/support/ended_by.h"

#include <doctest/doctest.h>

using cox::detail::Termination;

TEST_SUITE("termination") {
  TEST_CASE("a rank that leaves because another was asked survives its own late SIGTERM") {
    {
      Termination early;
      early.requested_elsewhere();
      ::raise(SIGTERM);  // between the last step and the end of the session
    }
    ::raise(SIGTERM);  // while the process exits
    Termination next;
    CHECK_FALSE(next.requested());
    ::raise(SIGINT);
    CHECK(next.requested());
  }

  TEST_CASE("a session that nobody asked to stop gives signals back as they were") {
    struct sigaction before {};
    struct sigaction after {};
    sigaction(SIGTERM, nullptr, &before);
    {
      Termination quiet;
      CHECK_FALSE(quiet.requested());
    }
    sigaction(SIGTERM, nullptr, &after);
    const bool is_as_before = after.sa_handler == before.sa_handler;
    CHECK(is_as_before);
  }

  TEST_CASE("a signal that the program ignores stays ignored") {
    const auto before = ::signal(SIGINT, SIG_IGN);
    {
      Termination job;
      CHECK_FALSE(job.requested());
      ::raise(SIGINT);
      CHECK_FALSE(job.requested());
    }
    ::signal(SIGINT, before);
  }

  TEST_CASE("SIGXCPU and SIGUSR1 ask a job to stop, again and again, and are given back") {
    for (const int signal : {SIGXCPU, SIGUSR1}) {
      CAPTURE(signal);
      CHECK(ended_by([signal] {
              Termination job;
              if (job.requested()) ::raise(SIGKILL);
              ::raise(signal);
              if (!job.requested()) ::raise(SIGKILL);
            }) == 0);
      CHECK(ended_by([signal] {
              { static_cast<void>(Termination().requested()); }
              ::raise(signal);
            }) == signal);
    }
    CHECK(ended_by([] {  // the system repeats it every second
            Termination job;
            job.requested();
            ::raise(SIGXCPU);
            job.requested();
            std::this_thread::sleep_for(std::chrono::milliseconds(1100));
            ::raise(SIGXCPU);
          }) == 0);
  }

  TEST_CASE("SIGXCPU and SIGUSR1 of another runtime stay its own, also when it comes later") {
    static volatile std::sig_atomic_t handled = 0;
    for (const int signal : {SIGXCPU, SIGUSR1}) {
      CAPTURE(signal);
      const auto before = ::signal(signal, [](int) { handled = handled + 1; });
      handled = 0;
      {
        Termination job;
        CHECK_FALSE(job.requested());
        ::raise(signal);
        CHECK_FALSE(job.requested());
      }
      ::raise(signal);
      CHECK(handled == 2);
      ::signal(signal, SIG_DFL);
      {
        Termination job;
        CHECK_FALSE(job.requested());
        ::signal(signal, [](int) { handled = handled + 1; });
      }
      ::raise(signal);
      CHECK(handled == 3);
      ::signal(signal, before);
    }
  }

  TEST_CASE("a loop that never asks is ended by the first SIGTERM or SIGINT") {
    for (const int signal : {SIGTERM, SIGINT}) {
      CHECK(ended_by([signal] {
              Termination job;
              ::raise(signal);
            }) == signal);
    }
  }

  TEST_CASE("the second request ends a process, one that follows at once is the same one") {
    CHECK(ended_by([] {
            Termination job;
            job.requested();
            ::raise(SIGTERM);
            ::raise(SIGINT);
            const bool is_alive = job.requested();
            std::this_thread::sleep_for(std::chrono::milliseconds(1100));
            if (is_alive) ::raise(SIGTERM);
          }) == SIGTERM);
  }

  TEST_CASE("a loop that does not ask again is ended by the deadline, one that does is not") {
    CHECK(ended_by([] {
            Termination job(std::chrono::seconds(1));
            job.requested();
            ::raise(SIGTERM);
            for (;;) ::pause();
          }) == SIGTERM);
    CHECK(ended_by([] {
            Termination job(std::chrono::seconds(1));
            job.requested();
            ::raise(SIGTERM);
            job.requested();
            std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          }) == 0);
    CHECK(ended_by([] {  // told by another rank, then signalled itself
            Termination job(std::chrono::seconds(1));
            job.requested();
            job.requested_elsewhere();
            ::raise(SIGTERM);
            std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          }) == 0);
  }
}
