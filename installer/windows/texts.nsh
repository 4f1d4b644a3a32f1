; All texts of Setup and the uninstaller, in English and Ukrainian.

!macro Text name english ukrainian
  LangString ${name} ${LANG_ENGLISH} "${english}"
  LangString ${name} ${LANG_UKRAINIAN} "${ukrainian}"
!macroend

!insertmacro Text RESEARCH_ONLY "Research use only. Not for diagnostic use." \
  "Лише для досліджень. Не для діагностики."
!insertmacro Text FOR_ME "For me only (no administrator needed)" "Лише для мене (адміністратор не потрібен)"
!insertmacro Text FOR_ALL "For all users of this computer (administrator needed)" \
  "Для всіх користувачів цього комп'ютера (потрібен адміністратор)"
!insertmacro Text FOLDER "Folder:" "Папка:"
!insertmacro Text BROWSE "Browse…" "Огляд…"
!insertmacro Text DESKTOP_ICON "Icon on the desktop" "Піктограма на робочому столі"
!insertmacro Text RUNTIME_FOUND \
  "The Edge TPU runtime for the Coral USB Accelerator was found next to Setup. It will be installed with Fieldray." \
  "Поруч із програмою встановлення знайдено середовище виконання Edge TPU для USB-прискорювача Coral. Його буде встановлено разом із Fieldray."
!insertmacro Text RUNTIME_ABSENT \
  "Fieldray runs without a Coral USB Accelerator. To use one, install its runtime (libedgetpu), or put edgetpu.dll and libusb-1.0.dll into a folder named edgetpu-runtime next to Setup and start Setup again. Setup downloads nothing." \
  "Fieldray працює і без USB-прискорювача Coral. Щоб користуватися ним, встановіть його середовище виконання (libedgetpu) або покладіть edgetpu.dll та libusb-1.0.dll у папку edgetpu-runtime поруч із програмою встановлення і запустіть її знову. Програма встановлення нічого не завантажує з мережі."
!insertmacro Text RUNTIME_WRONG \
  "The folder edgetpu-runtime next to Setup contains no edgetpu.dll for 64-bit Windows on Intel or AMD processors." \
  "У папці edgetpu-runtime поруч із програмою встановлення немає edgetpu.dll для 64-розрядної Windows на процесорах Intel або AMD."
!insertmacro Text RUNTIME_WITHOUT "Install Fieldray without the Edge TPU runtime?" "Встановити Fieldray без середовища виконання Edge TPU?"
!insertmacro Text START_NOW "Start Fieldray" "Запустити Fieldray"
!insertmacro Text FINISHED \
  "Fieldray is installed. It never connects to a network.$\r$\n$\r$\nUse the included model pack or plug in a USB drive with packs. Then open a folder with images." \
  "Fieldray встановлено. Програма ніколи не з'єднується з мережею.$\r$\n$\r$\nСкористайтеся вбудованим пакетом моделі або під'єднайте USB-накопичувач із пакетами. Потім відкрийте папку зі знімками."
!insertmacro Text IS_RUNNING "Fieldray is running. Close it, then try again." \
  "Fieldray працює. Закрийте програму і спробуйте ще раз."
!insertmacro Text SETUP_RUNS "Setup is already running." "Програму встановлення вже запущено."
!insertmacro Text NEEDS_WINDOWS "Fieldray needs 64-bit Windows 10 or newer. Nothing was installed." \
  "Для Fieldray потрібна 64-розрядна Windows 10 або новіша. Нічого не встановлено."
!insertmacro Text NEEDS_ADMINISTRATOR \
  "An administrator must run this for all users. Nothing was changed." \
  "Щоб зробити це для всіх користувачів, потрібні права адміністратора. Нічого не змінено."
!insertmacro Text FOLDER_NO_NAME "Enter the full path of the folder with its drive, for example D:\Programs\Fieldray. Nothing was installed." \
  "Вкажіть повний шлях до папки разом із диском, наприклад D:\Programs\Fieldray. Нічого не встановлено."
!insertmacro Text FOLDER_TOO_LONG "The path of the folder is too long for Windows. Choose a shorter path. Nothing was installed." \
  "Шлях до папки задовгий для Windows. Виберіть коротший. Нічого не встановлено."
!insertmacro Text FOLDER_FOREIGN \
  "The folder $INSTDIR contains other files. Choose an empty or a new folder. Nothing was installed." \
  "У папці $INSTDIR є інші файли. Виберіть порожню або нову папку. Нічого не встановлено."
!insertmacro Text FOLDER_IN_USE \
  "The folder $INSTDIR is used by another program. Close that program, then start Setup again. Nothing was changed." \
  "Папку $INSTDIR використовує інша програма. Закрийте ту програму і запустіть встановлення знову. Нічого не змінено."
!insertmacro Text NO_ROOM_LEFT \
  "There is not enough space on the disk: Fieldray needs ${SIZE_MB} MB. Nothing was installed." \
  "На диску замало місця: Fieldray потребує ${SIZE_MB} МБ. Нічого не встановлено."
!insertmacro Text NOT_WRITTEN \
  "Fieldray could not be written to $INSTDIR: the disk is full or write-protected. Nothing was changed." \
  "Не вдалося записати Fieldray до $INSTDIR: диск заповнений або захищений від запису. Нічого не змінено."
!insertmacro Text REMOVE "Remove Fieldray from this computer." "Видалення Fieldray з цього комп'ютера."
!insertmacro Text WILL_BE_REMOVED "The program in $INSTDIR will be removed." "Програму в папці $INSTDIR буде видалено."
!insertmacro Text RESULTS_TOO "Also delete my results, settings and trusted keys" \
  "Видалити також мої результати, налаштування й довірені ключі"
!insertmacro Text RESULTS_STAY \
  "Otherwise the results, settings and keys stay in $LOCALAPPDATA\fieldray. A later installation of Fieldray uses them again. Data of other users of this computer is never deleted." \
  "Інакше результати, налаштування й ключі залишаться в $LOCALAPPDATA\fieldray. Якщо встановити Fieldray знову, програма скористається ними. Дані інших користувачів цього комп'ютера ніколи не видаляються."
